import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import ShardState
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.answers import admissible_tokens, head_workers, summarize_workers
from meshnet_tracker.models import find_model
from meshnet_tracker.planning.snapshot import HeldShard, Holding, MeshSnapshot, WorkerView
from meshnet_tracker.store.store import Store
from tests.tracker.builders import MODEL, NOW, load, preset, shard
from tests.tracker.store.meshes import beat, issue, join, lose


def view(name: str, start: int, holding: Holding) -> WorkerView:
    return WorkerView(
        worker_id=WorkerId(name),
        url=f"http://{name}",
        vram_bytes=1,
        speed=1.0,
        quantizations=frozenset(),
        held=(HeldShard(MODEL, ShardRange(start, 6), holding),),
    )


def test_a_head_worker_has_layer_zero_ready() -> None:
    workers = [
        view("ready", 0, Holding.READY),
        view("later", 1, Holding.READY),
        view("loading", 0, Holding.LOADING),
        view("draining", 0, Holding.DRAINING),
    ]
    answer = head_workers(workers, find_model([preset().preset], "tiny"))
    assert answer.endpoints == ("http://ready",)


def lending(name: str, vram_bytes: int, *held: HeldShard) -> WorkerView:
    return WorkerView(
        worker_id=WorkerId(name),
        url=f"http://{name}",
        vram_bytes=vram_bytes,
        speed=1.0,
        quantizations=frozenset(),
        held=held,
    )


def held(start: int, end: int, holding: Holding = Holding.READY) -> HeldShard:
    return HeldShard(MODEL, ShardRange(start, end), holding)


@pytest.mark.parametrize(
    ("workers", "most"),
    [
        # Embeddings, three Layers, and 64 bytes for each of a token's Layers.
        ([lending("a", 3500 + 3 * 64 * 100, held(0, 3)), lending("b", 10**6, held(3, 6))], 100),
        ([lending("a", 10**6, held(0, 3)), lending("b", 3700 + 3 * 64 * 50, held(3, 6))], 50),
        # A Layer's roomiest Worker counts, unless it is not ready.
        ([lending("a", 7200 + 6 * 64 * 10, held(0, 6)), lending("b", 10**6, held(0, 6))], 256),
        (
            [
                lending("a", 7200 + 6 * 64 * 10, held(0, 6)),
                lending("b", 10**6, held(0, 6, Holding.LOADING)),
            ],
            10,
        ),
        ([lending("a", 10**6, held(0, 3))], 0),
        ([lending("a", 100, held(0, 6))], 0),
    ],
)
def test_no_more_tokens_are_promised_than_there_is_memory_for(
    workers: list[WorkerView], most: int
) -> None:
    known = preset().preset
    snapshot = MeshSnapshot((known,), tuple(workers))
    assert admissible_tokens(snapshot, find_model([known], "tiny")) == most


async def test_a_summary_tells_directives_under_way_and_workers_that_are_lost_or_leave(
    store: Store,
) -> None:
    await join(store, "w1", shard(0, 2, ShardState.LOADING))
    await issue(store, load("w1", 2, 4))
    await join(store, "w2", now=NOW - 60)
    await lose(store, NOW - 30, NOW)
    await join(store, "w3")
    await beat(store, "w3", leaving=True)
    first, second, third = summarize_workers(await store.workers(), NOW + 1).workers
    assert (first.state, second.state, third.state) == ("live", "lost", "leaving")
    assert second.seconds_since_heartbeat == 61
    assert (first.speeds_of, first.memory_bytes_per_sec) == ("layer", 0.0)
    (order,) = first.directives
    assert (order.kind, order.state, order.start_layer) == ("LOAD_SHARD", "issued", 2)
