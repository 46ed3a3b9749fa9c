from meshnet_common.protocol.messages import ShardState
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import HeldShard, Holding
from meshnet_tracker.store.snapshots import LEAST_SPEED
from meshnet_tracker.store.store import Store
from tests.tracker.builders import MODEL, NOW, TOKEN_SHA256, load, preset, registration, shard
from tests.tracker.store.meshes import beat, issue, join


async def test_a_snapshot_has_presets_workers_and_what_they_hold(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    await join(store, "w1", shard(0, 2, ShardState.LOADING))
    await issue(store, load("w1", 0, 4))
    loaded = await store.load_snapshot()
    assert loaded.epoch == 1
    assert loaded.snapshot.presets == (preset().preset,)
    (view,) = loaded.snapshot.workers
    assert view.held == (
        HeldShard(MODEL, ShardRange(0, 2), Holding.LOADING),
        HeldShard(MODEL, ShardRange(2, 4), Holding.ORDERED),
    )


async def test_no_worker_has_speed_zero(store: Store) -> None:
    await store.register_worker(registration("w1", speed=0.0), TOKEN_SHA256, NOW)
    await beat(store, "w1")
    assert (await store.load_snapshot()).snapshot.workers[0].speed == LEAST_SPEED


async def test_a_worker_counts_from_its_first_heartbeat_on(store: Store) -> None:
    await store.register_worker(registration("w1"), TOKEN_SHA256, NOW)
    assert (await store.load_snapshot()).snapshot.workers == ()
    assert await beat(store, "w1")
    assert len((await store.load_snapshot()).snapshot.workers) == 1
    assert not await beat(store, "w1")


async def test_workers_come_in_the_same_order_whoever_joined_first(store: Store) -> None:
    for worker_id in ("w3", "w1", "w2"):
        await join(store, worker_id)
    snapshot = (await store.load_snapshot()).snapshot
    assert [view.worker_id for view in snapshot.workers] == ["w1", "w2", "w3"]


async def test_all_that_a_leaving_worker_holds_drains(store: Store) -> None:
    await join(store, "w1", shard(0, 2), shard(2, 4, ShardState.LOADING))
    await beat(store, "w1", shard(0, 2), shard(2, 4, ShardState.LOADING), leaving=True)
    (view,) = (await store.load_snapshot()).snapshot.workers
    assert view.leaving
    assert [held.holding for held in view.held] == [Holding.DRAINING] * 2
