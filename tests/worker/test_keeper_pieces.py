"""A keeper whose loads are ready Layer by Layer."""

import asyncio

import pytest

from meshnet_common.protocol.messages import DirectiveKind, ShardState
from meshnet_worker.engine_port import LayersLoaded, LoadLayers
from meshnet_worker.shard_weights import FetchGivenUpError
from meshnet_worker.weights.progress import OnProgress
from tests.worker.builders import directive
from tests.worker.conftest import ModelFolders
from tests.worker.engines import SharedEngine
from tests.worker.keeping import Keeping
from tests.worker.waiting import ending_tasks

pytestmark = pytest.mark.asyncio(loop_scope="session")

DROP = DirectiveKind.DROP_SHARD


@pytest.fixture
def keeping(
    shared_engine: SharedEngine, model_folders: ModelFolders, monkeypatch: pytest.MonkeyPatch
) -> Keeping:
    monkeypatch.setattr("meshnet_worker.pieces.PIECE_SECONDS", 0.0)
    monkeypatch.setattr("meshnet_worker.pieces.LEAST_PIECE_BYTES", 1)
    return Keeping(shared_engine, model_folders("llama"))


async def test_of_a_long_load_the_first_layers_are_ready_before_the_last(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []

    async def noted(command: LoadLayers, on_progress: OnProgress) -> LayersLoaded:
        states.append((keeping.states(), keeping.weight_bytes))
        return await load(command, on_progress)

    load = keeping.engine.load
    monkeypatch.setattr(keeping.engine, "load", noted)
    await keeping.obey(directive(1, 4))
    reserved = keeping.size_of(1, 4)
    assert states == [
        ([(ShardState.LOADING, 1, 4)], reserved),
        ([(ShardState.READY, 1, 2), (ShardState.LOADING, 2, 4)], reserved),
        ([(ShardState.READY, 1, 3), (ShardState.LOADING, 3, 4)], reserved),
    ]
    assert keeping.states() == [(ShardState.READY, 1, 4)]


async def test_a_drop_of_what_is_still_to_come_ends_the_load_and_keeps_what_is_ready(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ending_tasks() as tasks:

        async def dropping(command: LoadLayers, on_progress: OnProgress) -> LayersLoaded:
            if command.start == 2:
                tasks.create_task(keeping.obey(directive(3, 4, DROP)))
                await asyncio.sleep(0)
            return await load(command, on_progress)

        load = keeping.engine.load
        monkeypatch.setattr(keeping.engine, "load", dropping)
        await keeping.refuse(directive(1, 4), FetchGivenUpError)
        assert keeping.states() == [(ShardState.READY, 1, 3)]
        await keeping.obey(directive(3, 4))
    assert keeping.states() == [(ShardState.READY, 1, 4)]
