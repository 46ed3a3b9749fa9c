from meshnet_common.protocol.messages import ShardState
from meshnet_tracker.store.store import Store
from tests.tracker.builders import shard
from tests.tracker.store.meshes import beat, join


async def test_a_heartbeat_replaces_what_was_reported_before(store: Store) -> None:
    await join(store, "w1", shard(0, 4))
    await beat(store, "w1", shard(2, 6), shard(0, 2, ShardState.DRAINING))
    (worker,) = await store.workers()
    assert worker.shards == (shard(2, 6), shard(0, 2, ShardState.DRAINING))


async def test_more_loaded_bytes_are_kept_but_are_no_change_of_place(store: Store) -> None:
    await join(store, "w1", shard(0, 4, ShardState.LOADING, bytes_done=1))
    changed = await beat(store, "w1", shard(0, 4, ShardState.LOADING, bytes_done=2))
    (worker,) = await store.workers()
    assert (changed, worker.shards[0].bytes_done) == (False, 2)


async def test_becoming_ready_is_a_change(store: Store) -> None:
    await join(store, "w1", shard(0, 4, ShardState.LOADING))
    assert await beat(store, "w1", shard(0, 4))
