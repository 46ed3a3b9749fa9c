import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from meshnet_common.protocol.messages import Directive, DirectiveKind, ShardState
from meshnet_common.shard_range import ShardRange
from meshnet_worker import pieces
from meshnet_worker.engine_port import Command, LayersLoaded, LoadLayers, MeasureLayers
from meshnet_worker.engine_process import ShardLoadError
from meshnet_worker.shard_weights import FetchGivenUpError
from meshnet_worker.weights.errors import DigestMismatchError
from meshnet_worker.weights.progress import OnProgress
from tests.worker.builders import directive
from tests.worker.conftest import ModelFolders
from tests.worker.engines import SharedEngine
from tests.worker.fetching import Fetching, fetching_keeper
from tests.worker.keeping import Keeping
from tests.worker.models import LAYERS
from tests.worker.waiting import SECONDS, ending_tasks

pytestmark = pytest.mark.asyncio(loop_scope="session")

DROP = DirectiveKind.DROP_SHARD
ALL = ShardRange(0, LAYERS)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece is one Layer."""
    monkeypatch.setattr(pieces, "PIECE_SECONDS", 0.0)
    monkeypatch.setattr(pieces, "LEAST_PIECE_BYTES", 1)


@pytest.fixture
def keeping(shared_engine: SharedEngine, model_folders: ModelFolders) -> Keeping:
    return Keeping(shared_engine, model_folders("llama"))


@pytest_asyncio.fixture(loop_scope="session")
async def known_by_files(
    shared_engine: SharedEngine, model_folders: ModelFolders, tmp_path: Path
) -> AsyncIterator[Fetching]:
    """Weights of which the digests of whole files are known, and no others."""
    model = model_folders("llama")
    async with fetching_keeper(shared_engine, model, tmp_path, per_tensor=False) as one:
        yield one


class Loads:
    """Sees each load before the engine does."""

    def __init__(self, keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layers: list[tuple[int, int]] = []
        self.fails_at: int | None = None
        self.then: Callable[[], object] = lambda: None
        self._load = keeping.engine.load
        monkeypatch.setattr(keeping.engine, "load", self._noted)

    async def _noted(self, command: LoadLayers, on_progress: OnProgress) -> LayersLoaded:
        self.layers.append((command.start, command.end))
        self.then()
        # Whoever was called meanwhile has its turn.
        await asyncio.sleep(0)
        if command.start == self.fails_at:
            raise ShardLoadError("The device is full.")
        return await self._load(command, on_progress)


@pytest.fixture
def loads(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> Loads:
    return Loads(keeping, monkeypatch)


async def lose_engine(keeping: Keeping) -> None:
    """Have what was ready wait for its restoration, on an engine that holds nothing."""
    shard, layers = keeping.shards.find("tiny", "float32"), keeping.ready
    assert shard is not None
    assert layers is not None
    keeping.slot.clear()
    keeping.keeper.forget_engine()
    await keeping.engine.drop(shard.number, layers)


async def test_each_piece_is_ready_while_the_next_one_loads(keeping: Keeping, loads: Loads) -> None:
    ready: list[ShardRange | None] = []
    loads.then = lambda: ready.append(keeping.ready)
    await keeping.obey(directive(0, LAYERS))
    assert loads.layers == [(layer, layer + 1) for layer in range(LAYERS)]
    assert ready == [None, *(ShardRange(0, end) for end in range(1, LAYERS))]
    assert keeping.states() == [(ShardState.READY, 0, LAYERS)]


async def test_a_run_grows_downwards_from_what_is_ready(keeping: Keeping, loads: Loads) -> None:
    await keeping.obey(directive(2, 3))
    await keeping.obey(directive(0, 3))
    assert loads.layers == [(2, 3), (1, 2), (0, 1)]


async def test_progress_never_falls_back_from_one_piece_to_the_next(
    keeping: Keeping, loads: Loads
) -> None:
    done: list[int] = []
    loads.then = lambda: done.extend(
        report.bytes_done
        for report in keeping.shards.reports()
        if report.state is ShardState.LOADING
    )
    await keeping.obey(directive(0, LAYERS))
    assert len(done) == LAYERS
    assert done == sorted(done)


async def test_a_load_that_fails_keeps_what_is_ready_which_is_measured_all_the_same(
    keeping: Keeping, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Command] = []
    send = keeping.engine.send

    def noted(command: Command, payload: bytes = b"") -> None:
        sent.append(command)
        send(command, payload)

    monkeypatch.setattr(keeping.engine, "send", noted)
    loads.fails_at = 2
    await keeping.refuse(directive(0, LAYERS), ShardLoadError)
    assert keeping.states() == [(ShardState.READY, 0, 2)]
    loads.fails_at = None
    await keeping.obey(directive(2, LAYERS))
    assert keeping.ready == ALL
    assert [isinstance(each, MeasureLayers) for each in sent].count(True) == 1


async def test_a_drop_ends_a_load_between_two_pieces(keeping: Keeping, loads: Loads) -> None:
    async with ending_tasks() as tasks:
        dropping: list[asyncio.Task[None]] = []

        def drop() -> None:
            if len(loads.layers) == 2:
                told = keeping.obey(directive(2, LAYERS, DROP, epoch=2))
                dropping.append(tasks.create_task(told))

        loads.then = drop
        await keeping.refuse(directive(0, LAYERS), FetchGivenUpError)
        await dropping[0]
    assert keeping.states() == [(ShardState.READY, 0, 2)]


async def test_a_load_that_waits_for_its_turn_is_called_off_by_a_newer_drop(
    keeping: Keeping, loads: Loads
) -> None:
    async with ending_tasks() as tasks:
        waiting: list[asyncio.Task[object]] = []

        def order() -> None:
            if not waiting:
                load = keeping.refuse(directive(2, 4, epoch=2), FetchGivenUpError)
                waiting.append(tasks.create_task(load))
                waiting.append(tasks.create_task(keeping.obey(directive(2, 4, DROP, epoch=3))))

        loads.then = order
        await keeping.obey(directive(0, 2))
        for task in waiting:
            await task
    assert loads.layers == [(0, 1), (1, 2)]
    assert keeping.states() == [(ShardState.READY, 0, 2)]


async def test_a_load_that_is_ordered_after_a_drop_is_carried_out(keeping: Keeping) -> None:
    await keeping.obey(directive(0, 4))
    await keeping.obey(directive(0, 4, DROP, epoch=2))
    await keeping.obey(directive(0, 4, epoch=3))
    assert keeping.ready == ALL


async def test_nothing_is_ready_before_its_restored_engine_takes_commands(
    keeping: Keeping, loads: Loads
) -> None:
    await keeping.obey(directive(0, LAYERS))
    await lose_engine(keeping)
    loads.layers.clear()
    seen: list[ShardRange | None] = []
    loads.then = lambda: seen.append(keeping.ready)
    await keeping.keeper.restore(keeping.engine)
    assert (loads.layers, seen, keeping.ready) == ([(0, LAYERS)], [None], ALL)


def second_shard(keeping: Keeping) -> ShardRange:
    """Let the Worker hold some Layers of another model as well."""
    (first,) = keeping.shards
    preset = msgspec.structs.replace(keeping.model, name="other")
    shard = keeping.shards.add(preset, preset.variants[0], first.folder)
    shard.ready = ShardRange(0, 2)
    keeping.weights._models[shard.key] = keeping.weights._models[first.key]
    return shard.ready


@pytest.mark.parametrize("dropped", [(0, 2), (1, 2)])
async def test_a_drop_of_what_waits_for_its_restoration_costs_no_other_shard(
    keeping: Keeping, loads: Loads, dropped: tuple[int, int]
) -> None:
    await keeping.obey(directive(0, LAYERS))
    layers = second_shard(keeping)
    await lose_engine(keeping)
    async with ending_tasks() as tasks:
        dropping: list[asyncio.Task[None]] = []

        def drop() -> None:
            if not dropping:
                told = msgspec.structs.replace(directive(*dropped, DROP, epoch=2), model="other")
                dropping.append(tasks.create_task(obey_any(keeping, told)))

        loads.then = drop
        await keeping.keeper.restore(keeping.engine)
        assert keeping.ready == ALL
        other = keeping.shards.find("other", "float32")
        assert other is not None
        assert other.ready == layers
        keeping.slot.put(keeping.engine)
        await dropping[0]
    left = ShardRange(0, 1) if dropped == (1, 2) else None
    assert (other.ready, keeping.ready) == (left, ALL)


async def obey_any(keeping: Keeping, told: Directive) -> None:
    """Obey a directive about any model that is here."""
    async with asyncio.timeout(SECONDS):
        await keeping.keeper.obey(told, keeping.fetch_preset)


async def test_a_drop_of_a_part_of_what_is_being_restored_leaves_the_rest(
    keeping: Keeping, loads: Loads
) -> None:
    await keeping.obey(directive(0, LAYERS))
    await lose_engine(keeping)
    async with ending_tasks() as tasks:
        dropping: list[asyncio.Task[None]] = []
        told = directive(2, LAYERS, DROP, epoch=2)
        loads.then = lambda: dropping.append(tasks.create_task(obey_any(keeping, told)))
        await keeping.keeper.restore(keeping.engine)
        assert keeping.ready == ALL
        keeping.slot.put(keeping.engine)
        await dropping[0]
    assert keeping.ready == ShardRange(0, 2)


async def test_layers_do_not_serve_before_all_of_a_file_is_here_and_right_where_that_is_known(
    known_by_files: Fetching,
) -> None:
    keeping, mirror = known_by_files.keeping, known_by_files.mirror
    right = mirror.files["model.safetensors"]
    mirror.files["model.safetensors"] = right[:-1] + bytes([right[-1] ^ 1])
    await keeping.refuse(directive(0, LAYERS), DigestMismatchError)
    assert (keeping.states(), keeping.weight_bytes) == ([], 0)
    mirror.files["model.safetensors"] = right
    await keeping.obey(directive(0, LAYERS))
    assert keeping.ready == ALL
