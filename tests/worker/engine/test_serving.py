import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from meshnet_common.openai.formats import schema_grammar
from meshnet_common.protocol.sampling import History, Sampling
from meshnet_worker.engine import compiled
from meshnet_worker.engine.serving import Engine
from meshnet_worker.engine_messages import Message, MessageParser, encode_message
from meshnet_worker.engine_port import (
    GRAMMAR_FAILED,
    ArmSession,
    CloseSession,
    Command,
    DropLayers,
    Event,
    LayersDropped,
    LayersLoaded,
    LayersMeasured,
    LoadLayers,
    LoadProgressed,
    MeasureLayers,
    Noted,
    OpenSession,
    RunSegment,
    SessionFailed,
    SizePool,
    Stepped,
    Tune,
)
from tests.worker.builders import GREEDY
from tests.worker.conftest import ModelFolders
from tests.worker.engine.splitting import CPU
from tests.worker.models import HIDDEN_SIZE, LAYERS, greedy_answer, prompt_of
from tests.worker.text import small_tokenizers

SECONDS = 20.0
BLOCKS = 40


class Port:
    """The daemon's end of an engine that runs in a thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._parser = MessageParser()
        self._messages: Iterator[Message] = iter(())

    def say(self, *commands: Command) -> None:
        self._end.sendall(b"".join(encode_message(command) for command in commands))

    def hear(self) -> Event:
        while (message := next(self._messages, None)) is None:
            data = self._end.recv(1 << 16)
            assert data, "the engine hung up"
            self._parser.feed(data)
            self._messages = self._parser.messages()
        assert isinstance(message.body, Event)
        return message.body

    def hear_last(self) -> Event:
        """The first event that is no progress."""
        while isinstance(event := self.hear(), LoadProgressed):
            pass
        return event


@contextmanager
def served_engine() -> Iterator[Port]:
    ours, theirs = socket.socketpair()
    ours.settimeout(SECONDS)
    thread = threading.Thread(target=Engine(theirs, CPU).serve)
    thread.start()
    try:
        yield Port(ours)
    finally:
        ours.close()
        thread.join(SECONDS)
        theirs.close()
        assert not thread.is_alive(), "the engine outlives its daemon"


def load(folder: object, start: int = 0, end: int = LAYERS) -> LoadLayers:
    return LoadLayers(0, str(folder), "float32", start, end)


@pytest.fixture
def port() -> Iterator[Port]:
    with served_engine() as engine:
        yield engine


def test_it_loads_runs_and_drops(port: Port, model_folders: ModelFolders) -> None:
    port.say(load(model_folders("llama")))
    loaded = port.hear_last()
    assert isinstance(loaded, LayersLoaded)
    assert loaded == LayersLoaded(0, 0, LAYERS, HIDDEN_SIZE, loaded.layer_bytes)
    prompt = tuple(prompt_of(9))
    port.say(
        Tune(1),
        SizePool(0, BLOCKS),
        OpenSession(1, 0, 0, LAYERS, 20),
        ArmSession(1, (1, 0), GREEDY),
        RunSegment(1, (1, 0), 0, 9, token_ids=prompt, draws=True),
    )
    stepped = port.hear()
    assert isinstance(stepped, Stepped)
    assert stepped.results[0].token_id == greedy_answer("llama", 9, 1)[0]
    port.say(CloseSession(1), DropLayers(0, 0, LAYERS))
    assert port.hear() == LayersDropped(0, 0, LAYERS)


def test_a_session_on_layers_that_are_dropped_fails(
    port: Port, model_folders: ModelFolders
) -> None:
    port.say(load(model_folders("llama")))
    port.hear_last()
    port.say(SizePool(0, BLOCKS), OpenSession(1, 0, 0, LAYERS, 20), DropLayers(0, 0, LAYERS))
    assert port.hear() == LayersDropped(0, 0, LAYERS)
    assert port.hear() == SessionFailed(1, f"[0, {LAYERS}) was dropped")


def test_loaded_layers_are_measured_beside_batches(port: Port, model_folders: ModelFolders) -> None:
    port.say(load(model_folders("llama")), MeasureLayers(0), MeasureLayers(7))
    assert isinstance(port.hear_last(), LayersLoaded)
    port.say(MeasureLayers(0), SizePool(0, BLOCKS), OpenSession(1, 0, 0, LAYERS, 20))
    port.say(ArmSession(1, (1, 0), GREEDY))
    port.say(RunSegment(1, (1, 0), 0, 9, token_ids=tuple(prompt_of(9)), draws=True))
    stepped, measured = port.hear(), port.hear()
    assert isinstance(stepped, Stepped)
    assert stepped.results[0].token_id == greedy_answer("llama", 9, 1)[0]
    assert isinstance(measured, LayersMeasured)
    assert 0 < measured.decode_tokens_per_second < measured.prefill_tokens_per_second


def test_batches_run_between_the_layers_of_a_load(port: Port, model_folders: ModelFolders) -> None:
    port.say(load(model_folders("llama"), 0, 1))
    port.hear_last()
    port.say(
        LoadLayers(1, str(model_folders("gpt2")), "float32", 0, LAYERS),
        SizePool(0, BLOCKS),
        OpenSession(1, 0, 0, 1, 4),
        RunSegment(1, (1, 0), 0, 2, token_ids=(3, 4)),
    )
    events = [port.hear() for _ in range(LAYERS + 4)]
    kinds = [type(event) for event in events]
    assert kinds.count(Stepped) == 1
    assert kinds.index(Stepped) < kinds.index(LayersLoaded)


def test_commands_that_arrive_together_are_all_heard(
    port: Port, model_folders: ModelFolders
) -> None:
    port.say(load(model_folders("llama"), 0, 1))
    port.hear_last()
    sessions = range(1, 40)
    port.say(SizePool(0, BLOCKS), *(OpenSession(session, 0, 0, 1, 4) for session in sessions))
    port.say(*(RunSegment(session, (1, 0), 0, 1, token_ids=(3,)) for session in sessions))
    ran: set[int] = set()
    while len(ran) < len(sessions):
        stepped = port.hear()
        assert isinstance(stepped, Stepped)
        ran |= {result.session for result in stepped.results}
    assert ran == set(sessions)


def test_what_was_compiled_is_taken_while_the_engine_idles(
    port: Port, model_folders: ModelFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_given: object) -> None:
        raise RuntimeError("g++ is not there")

    monkeypatch.setattr(compiled, "WARM_PASSES", 1)
    monkeypatch.setattr(compiled, "make_package", failing)
    port.say(load(model_folders("llama"), 0, 1))
    port.hear_last()
    port.say(SizePool(0, BLOCKS), OpenSession(1, 0, 0, 1, 4))
    port.say(*(RunSegment(1, (1, 0), start, 1, token_ids=(3,)) for start in range(2)))
    assert isinstance(port.hear(), Stepped)
    assert isinstance(port.hear(), Stepped)
    noted = port.hear()
    assert isinstance(noted, Noted)
    assert str(noted.facts["reason"]).endswith("RuntimeError: g++ is not there")


def test_it_ends_when_the_daemon_hangs_up(model_folders: ModelFolders) -> None:
    with served_engine() as engine:
        engine.say(load(model_folders("llama")))
        engine.hear_last()


def answered(port: Port, sampling: Sampling) -> list[int]:
    """The answer of one Session, up to its end; raises AssertionError where it fails."""
    prompt, answer = tuple(prompt_of(9)), list[int]()
    port.say(
        OpenSession(1, 0, 0, LAYERS, 60),
        ArmSession(1, (1, 0), sampling, History(answer_start=9)),
        RunSegment(1, (1, 0), 0, 9, token_ids=prompt, draws=True),
    )
    while True:
        event = port.hear_last()
        assert isinstance(event, Stepped), event
        if not event.results:
            # Of the Session before, which has failed.
            continue
        token_id = event.results[0].token_id
        assert token_id is not None
        if token_id in sampling.end_ids:
            return answer
        answer.append(token_id)
        place = 8 + len(answer)
        port.say(RunSegment(1, (1, 0), place, 1, token_ids=(token_id,), draws=True))


def test_an_answer_keeps_to_its_grammar(
    port: Port, model_folders: ModelFolders, tmp_path: Path
) -> None:
    tokenizer = small_tokenizers.byte_level()
    folder = tmp_path / "model"
    shutil.copytree(model_folders("llama"), folder)
    small_tokenizers.model_folder(folder, tokenizer)
    port.say(load(folder))
    port.hear_last()
    port.say(Tune(1, compiles=False), SizePool(0, BLOCKS))
    text = schema_grammar({"type": "integer", "minimum": 10, "maximum": 99})
    for seed in range(3):
        sampling = Sampling(temperature=1.5, top_p=1.0, seed=seed, end_ids=(0,), grammar=text)
        answer = answered(port, sampling)
        assert json.loads(tokenizer.decode(answer)) in range(10, 100)
        port.say(CloseSession(1))


def test_a_grammar_that_cannot_be_followed_fails_its_session_alone(
    port: Port, model_folders: ModelFolders
) -> None:
    port.say(load(model_folders("llama")))
    port.hear_last()
    port.say(Tune(1, compiles=False), SizePool(0, BLOCKS))
    # The words of this model are no tokens that could be spelled.
    sampling = msgspec.structs.replace(GREEDY, grammar=schema_grammar({"type": "null"}))
    port.say(
        OpenSession(1, 0, 0, LAYERS, 20),
        ArmSession(1, (1, 0), sampling, History(answer_start=9)),
        RunSegment(1, (1, 0), 0, 9, token_ids=tuple(prompt_of(9)), draws=True),
    )
    failed = port.hear_last()
    while not isinstance(failed, SessionFailed):
        failed = port.hear_last()
    assert failed.session == 1
    assert failed.code == GRAMMAR_FAILED
    assert "tokenizer" in failed.reason
    sampling = msgspec.structs.replace(GREEDY, end_ids=(greedy_answer("llama", 9, 1)[0],))
    assert answered(port, sampling) == []
