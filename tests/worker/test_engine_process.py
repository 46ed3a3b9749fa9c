import asyncio
import socket
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from meshnet_common.shard_range import ShardRange
from meshnet_worker.encodings import EncodeFailedError
from meshnet_worker.engine_messages import MessageParser, encode_message
from meshnet_worker.engine_port import (
    ArmSession,
    CloseSession,
    DropLayers,
    ExtendSession,
    LayersLoaded,
    Noted,
    OpenSession,
    RunSegment,
    Tune,
)
from meshnet_worker.engine_process import (
    EngineListener,
    EngineLostError,
    EngineProcess,
    ShardLoadError,
    running_engine,
)
from tests.worker.builders import GREEDY
from tests.worker.conftest import ModelFolders
from tests.worker.engine.test_encoder import CONFIGS, save
from tests.worker.engines import WHOLE_LLAMA, SharedEngine, ignore_progress, load
from tests.worker.models import HIDDEN_SIZE, LAYERS, WORDS, greedy_answer, prompt_of
from tests.worker.waiting import SECONDS, ending_tasks

pytestmark = pytest.mark.asyncio(loop_scope="session")

DEAF = EngineListener(lambda _stepped, _payload: None, lambda _failed: None)


def run_prompt(shared: SharedEngine, session: int, prompt: list[int]) -> None:
    shared.engine.send(OpenSession(session, WHOLE_LLAMA, 0, LAYERS, 64))
    shared.engine.send(ArmSession(session, (1, 0), GREEDY))
    ids = tuple(prompt)
    shared.engine.send(RunSegment(session, (1, 0), 0, len(ids), token_ids=ids, draws=True))


async def test_a_device_is_probed(shared_engine: SharedEngine) -> None:
    probed = await shared_engine.engine.probe()
    assert (probed.device, probed.name) == ("cpu", "CPU")
    assert probed.total_bytes == psutil.virtual_memory().total
    assert probed.tokens_per_second > 0


async def test_a_load_tells_how_far_it_is(
    shared_engine: SharedEngine, model_folders: ModelFolders
) -> None:
    number = next(shared_engine.numbers)
    heard: list[tuple[int, int]] = []
    loaded = await shared_engine.engine.load(
        load(model_folders("gpt2"), number, 1, 3), lambda *progress: heard.append(progress)
    )
    assert loaded == LayersLoaded(number, 1, 3, HIDDEN_SIZE, loaded.layer_bytes)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert heard[-1][0] == heard[-1][1] > 0
    await shared_engine.engine.drop(number, ShardRange(1, 3))


async def test_a_load_that_fails_says_why_and_leaves_nothing(
    shared_engine: SharedEngine, tmp_path: Path, model_folders: ModelFolders
) -> None:
    number = next(shared_engine.numbers)
    with pytest.raises(ShardLoadError, match=r".+"):
        await shared_engine.engine.load(load(tmp_path, number), ignore_progress)
    # Had anything been left, the same number could not name another model now.
    loaded = await shared_engine.engine.load(
        load(model_folders("gpt2"), number, 2, 3), ignore_progress
    )
    assert loaded.hidden_size == HIDDEN_SIZE
    await shared_engine.engine.drop(number, ShardRange(2, 3))


async def test_a_session_gets_its_token(shared_engine: SharedEngine) -> None:
    session = next(shared_engine.numbers)
    run_prompt(shared_engine, session, prompt_of(9))
    await shared_engine.changes.until(lambda: shared_engine.ran(session))
    assert shared_engine.token_of(session) == greedy_answer("llama", 9, 1)[0]


async def test_a_session_that_fails_costs_the_others_nothing(shared_engine: SharedEngine) -> None:
    sessions = [next(shared_engine.numbers) for _ in range(3)]
    for session, prompt in zip(sessions, (prompt_of(9), [WORDS], prompt_of(9)), strict=True):
        run_prompt(shared_engine, session, prompt)
    first, failing, last = sessions
    await shared_engine.changes.until(lambda: shared_engine.ran(first) and shared_engine.ran(last))
    await shared_engine.changes.until(lambda: shared_engine.failed(failing))
    expected = greedy_answer("llama", 9, 1)[0]
    assert [shared_engine.token_of(session) for session in sessions] == [expected, None, expected]


async def test_a_closed_session_is_forgotten(shared_engine: SharedEngine) -> None:
    closed, later = next(shared_engine.numbers), next(shared_engine.numbers)
    engine = shared_engine.engine
    engine.send(OpenSession(closed, WHOLE_LLAMA, 0, LAYERS, 4))
    engine.send(CloseSession(closed))
    engine.send(ArmSession(closed, (1, 0), GREEDY))
    engine.send(ExtendSession(closed, 8))
    engine.send(RunSegment(closed, (1, 0), 0, 1, token_ids=(1,), draws=True))
    run_prompt(shared_engine, later, prompt_of(3))
    await shared_engine.changes.until(lambda: shared_engine.ran(later))
    assert not shared_engine.ran(closed)
    assert not shared_engine.failed(closed)


async def test_threads_may_be_set_while_it_runs(shared_engine: SharedEngine) -> None:
    session = next(shared_engine.numbers)
    shared_engine.engine.send(Tune(1))
    run_prompt(shared_engine, session, prompt_of(3))
    await shared_engine.changes.until(lambda: shared_engine.ran(session))


def engines_of_this_process() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if _is_engine(child)]


def _is_engine(process: psutil.Process) -> bool:
    try:
        return "meshnet_worker.engine.main" in process.cmdline()
    except psutil.NoSuchProcess:
        # Some other test's, which has ended and waits to be taken leave of.
        return False


async def lost_with(waiting: Coroutine[Any, Any, object]) -> bool:
    try:
        async with asyncio.timeout(SECONDS):
            await waiting
    except EngineLostError:
        return True
    return False


async def started(engine: EngineProcess) -> None:
    """Wait until the process has loaded torch and listens."""
    with pytest.raises(ShardLoadError):
        await engine.load(load(Path("nowhere"), 1), ignore_progress)


@pytest.mark.usefixtures("shared_engine")
async def test_an_engine_that_is_killed_fails_all_that_waits() -> None:
    others = set(engines_of_this_process())
    async with running_engine("cpu", DEAF) as engine, ending_tasks() as tasks:
        await started(engine)
        (process,) = set(engines_of_this_process()) - others
        waiting = [
            tasks.create_task(lost_with(engine.run())),
            tasks.create_task(lost_with(engine.probe())),
            tasks.create_task(lost_with(engine.drop(WHOLE_LLAMA, ShardRange(0, 1)))),
        ]
        process.suspend()
        await asyncio.sleep(0)
        process.kill()
        assert [await one for one in waiting] == [True, True, True]
        with pytest.raises(EngineLostError):
            engine.send(DropLayers(0, 0, 1))
    assert set(engines_of_this_process()) == others


async def test_an_engine_ends_when_its_daemons_end_closes() -> None:
    ours, theirs = socket.socketpair()
    command = (sys.executable, "-m", "meshnet_worker.engine.main", str(theirs.fileno()), "cpu")
    process = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()])
    theirs.close()
    ours.close()
    async with asyncio.timeout(30):
        assert await process.wait() == 0


async def test_an_engine_starts_where_nobody_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    async with running_engine("cpu", DEAF) as engine, ending_tasks() as tasks:
        tasks.create_task(engine.run())
        assert (await engine.probe()).device == "cpu"


async def test_what_an_engine_notes_is_a_line_of_the_log() -> None:
    with capture_logs() as lines:
        engine = EngineProcess(DEAF)
        engine.data_received(encode_message(Noted("decode steps compiled", {"width": 8})))
    assert lines == [{"event": "decode steps compiled", "log_level": "info", "width": 8}]


async def test_what_is_said_together_arrives_together() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    with theirs:
        transport, engine = await loop.create_unix_connection(
            lambda: EngineProcess(DEAF), sock=ours
        )
        said = [CloseSession(session) for session in range(3)]
        for command in said:
            engine.send(command)
        parser = MessageParser()
        # One read, as the engine does before it starts a Batch.
        parser.feed(await loop.sock_recv(theirs, 1 << 16))
        assert [message.body for message in parser.messages()] == said
        transport.close()


async def test_texts_are_encoded_between_other_work(
    shared_engine: SharedEngine, tmp_path: Path
) -> None:
    engine, number = shared_engine.engine, next(shared_engine.numbers)
    encode = engine.encodings.encode
    with pytest.raises(EncodeFailedError):
        await encode(number, [[5]])
    folder = save(tmp_path, CONFIGS["BertModel"])
    await engine.load(load(folder, number, 0, 1), ignore_progress)
    one, both = await encode(number, [[5, 6]]), await encode(number, [[7], [5, 6]])
    assert len(both) == 2 * len(one) == 2 * 4 * 32
    with pytest.raises(EncodeFailedError, match="IndexError"):
        await encode(number, [[100_000]])
    await engine.drop(number, ShardRange(0, 1))
