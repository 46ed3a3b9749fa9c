import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from structlog.testing import capture_logs
from structlog.typing import EventDict

from meshnet_common.edge.remote_files import SourceRefusedError
from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.messages import DirectiveKind, ShardState
from meshnet_common.shard_range import ShardRange
from meshnet_worker import speeds
from meshnet_worker.engine_process import EngineLostError
from meshnet_worker.shard_weights import FetchGivenUpError
from meshnet_worker.weights.errors import DigestMismatchError
from meshnet_worker.weights.part_files import evict
from tests.weights import manifest_of
from tests.worker.builders import directive
from tests.worker.conftest import ModelFolders
from tests.worker.engines import SharedEngine
from tests.worker.fetching import Fetching, fetching_keeper
from tests.worker.waiting import ending_tasks

pytestmark = pytest.mark.asyncio(loop_scope="session")

DROP = DirectiveKind.DROP_SHARD


@pytest_asyncio.fixture(loop_scope="session")
async def fetching(
    shared_engine: SharedEngine, model_folders: ModelFolders, tmp_path: Path
) -> AsyncIterator[Fetching]:
    async with fetching_keeper(shared_engine, model_folders("llama"), tmp_path) as one:
        yield one


async def test_a_load_fetches_its_own_layers_and_makes_them_ready(fetching: Fetching) -> None:
    keeping = fetching.keeping
    await keeping.obey(directive(1, 3))
    assert keeping.states() == [(ShardState.READY, 1, 3)]
    assert fetching.parts == ["layer-00001", "layer-00002"]
    await keeping.obey(directive(0, 1))
    await keeping.obey(directive(3, 4))
    assert keeping.ready == ShardRange(0, 4)


async def test_a_load_tells_how_fast_its_weights_came(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speeds, "LEAST_ARRIVED_BYTES", 1)
    keeping = fetching.keeping
    assert keeping.weights.bytes_per_second == 0
    await keeping.obey(directive(1, 4))
    assert keeping.weights.bytes_per_second > 0


async def test_progress_counts_what_is_fetched_and_then_what_is_loaded(fetching: Fetching) -> None:
    keeping = fetching.keeping
    async with fetching.stalled(directive(1, 4), FetchGivenUpError):
        (report,) = keeping.shards.reports()
        assert report.state is ShardState.LOADING
        assert report.bytes_total > keeping.size_of(1, 4)
        assert report.bytes_done < report.bytes_total - keeping.size_of(1, 4)
        await keeping.obey(directive(1, 4, DROP, epoch=2))


async def test_a_load_whose_download_fails_leaves_the_worker_usable(fetching: Fetching) -> None:
    keeping = fetching.keeping
    await keeping.obey(directive(1, 2))
    fetching.mirror.statuses = [403]
    reason = await keeping.refuse(directive(2, 4), SourceRefusedError)
    assert "status 403. Does it need a token" in reason
    assert keeping.states() == [(ShardState.READY, 1, 2)]
    assert keeping.weight_bytes == keeping.size_of(1, 2)
    await keeping.obey(directive(2, 4))
    assert keeping.ready == ShardRange(1, 4)


async def test_of_wrong_bytes_nothing_is_loaded(fetching: Fetching) -> None:
    keeping, mirror = fetching.keeping, fetching.mirror
    right = mirror.files["model.safetensors"]
    mirror.files["model.safetensors"] = right[:-1] + bytes([right[-1] ^ 1])
    reason = await keeping.refuse(directive(0, 4), DigestMismatchError)
    assert "has the SHA-256" in reason
    assert (keeping.states(), keeping.weight_bytes) == ([], 0)
    mirror.files["model.safetensors"] = right
    await keeping.obey(directive(0, 4))
    assert keeping.ready == ShardRange(0, 4)


async def test_a_newer_drop_ends_a_fetch_of_the_same_layers(fetching: Fetching) -> None:
    keeping = fetching.keeping
    async with fetching.stalled(directive(1, 4), FetchGivenUpError):
        await keeping.obey(directive(0, 4, DROP, epoch=2))
    assert keeping.states() == []


async def test_a_fetch_does_not_stand_in_the_way_of_a_lost_engines_return(
    fetching: Fetching,
) -> None:
    keeping = fetching.keeping
    await keeping.obey(directive(1, 2))
    (shard,) = keeping.shards
    async with fetching.stalled(directive(2, 4), EngineLostError):
        keeping.keeper.forget_engine()
        await keeping.engine.drop(shard.number, ShardRange(1, 2))
        await keeping.keeper.restore(keeping.engine)
    assert keeping.states() == [(ShardState.READY, 1, 2)]
    await keeping.obey(directive(2, 4))
    assert keeping.ready == ShardRange(1, 4)


async def test_what_a_shard_holds_is_not_evicted_and_what_it_dropped_may_be(
    fetching: Fetching,
) -> None:
    keeping = fetching.keeping
    await keeping.obey(directive(1, 4))
    await keeping.obey(directive(3, 4, DROP))
    gone = {file.stem: evict(file) for file in fetching.folder.glob("*/*.safetensors")}
    assert gone == {
        "layer-00001": False,
        "layer-00002": False,
        "layer-00003": True,
        "norms": True,
        "output": True,
    }


async def test_an_engine_that_is_lost_before_the_fetch_costs_no_download(
    fetching: Fetching,
) -> None:
    keeping, fetch_preset = fetching.keeping, fetching.keeping.fetch_preset

    async def losing_the_engine(name: str) -> ModelPreset:
        keeping.slot.clear()
        keeping.keeper.forget_engine()
        return await fetch_preset(name)

    with pytest.raises(EngineLostError, match="not fetched"):
        await keeping.keeper.obey(directive(1, 3), losing_the_engine)
    assert (keeping.states(), fetching.mirror.requests) == ([], [])
    keeping.slot.put(keeping.engine)
    await keeping.obey(directive(1, 3))
    assert keeping.ready == ShardRange(1, 3)


async def test_a_directive_that_waited_while_the_engine_was_lost_uses_the_next_one(
    fetching: Fetching,
) -> None:
    keeping = fetching.keeping
    await keeping.obey(directive(1, 2))
    (shard,) = keeping.shards
    async with ending_tasks() as tasks:
        async with fetching.stalled(directive(2, 4), EngineLostError):
            waiting = tasks.create_task(keeping.obey(directive(2, 4, epoch=2)))
            # It has the engine by now, and waits for the lock.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            keeping.slot.clear()
            keeping.keeper.forget_engine()
            await keeping.engine.drop(shard.number, ShardRange(1, 2))
            await keeping.keeper.restore(keeping.engine)
            assert (keeping.states(), waiting.done()) == ([(ShardState.READY, 1, 2)], False)
        keeping.slot.put(keeping.engine)
        await waiting
    assert keeping.ready == ShardRange(1, 4)


async def test_what_an_engine_lost_during_the_first_load_had_is_held_no_more(
    fetching: Fetching,
) -> None:
    keeping = fetching.keeping
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(keeping.engine, "load", lost)
        await keeping.refuse(directive(1, 3), EngineLostError)
    keeping.keeper.forget_engine()
    await keeping.obey(directive(1, 2))
    gone = {file.stem: evict(file) for file in fetching.folder.glob("*/*.safetensors")}
    assert gone == {"layer-00001": False, "layer-00002": True}


def warnings_in(logs: Sequence[EventDict]) -> list[str]:
    return [entry["layers"] for entry in logs if "unchecked" in entry["event"]]


@pytest.mark.parametrize("keeps_digests", [False, True])
async def test_weights_of_which_nothing_was_checked_are_told(
    fetching: Fetching, keeps_digests: bool
) -> None:
    keeping = fetching.keeping
    if not keeps_digests:
        keeping.model = msgspec.structs.replace(keeping.model, manifest=None)
    with capture_logs() as logs:
        await keeping.obey(directive(1, 3))
    assert warnings_in(logs) == ([] if keeps_digests else ["[1, 3)"])


async def test_a_part_of_a_file_that_is_known_as_a_whole_is_told_as_unchecked(
    fetching: Fetching,
) -> None:
    keeping = fetching.keeping
    manifest = manifest_of(fetching.mirror.files, per_tensor=False)
    keeping.model = msgspec.structs.replace(keeping.model, manifest=manifest)
    with capture_logs() as logs:
        await keeping.obey(directive(0, 3))
        # With the last part the whole file is here, and is checked.
        await keeping.obey(directive(3, 4))
    assert warnings_in(logs) == ["[0, 3)"]


async def lost(*_load: object) -> None:
    raise EngineLostError
