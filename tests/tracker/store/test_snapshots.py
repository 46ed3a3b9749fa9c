import msgspec
import pytest
from sqlalchemy import update

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReport, DirectiveState, ShardState
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import HeldShard, Holding
from meshnet_tracker.records import Beat
from meshnet_tracker.store import counters
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.schema import workers
from meshnet_tracker.store.snapshots import LEAST_RATE, LEAST_SPEED, MeshNumbers, rounded
from meshnet_tracker.store.store import Store
from meshnet_tracker.store.transactions import Transactions
from meshnet_tracker.store.words import Load
from meshnet_tracker.worker_rules import MAX_SPEED
from tests.tracker.builders import (
    MODEL,
    NOW,
    TOKEN_SHA256,
    heartbeat,
    load,
    preset,
    registration,
    shard,
)
from tests.tracker.store.meshes import (
    beat,
    hear,
    issue,
    join,
    leave,
    lose,
    open_for,
    register,
    tell,
)


async def test_a_snapshot_has_presets_workers_and_what_they_hold(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    await join(store, "w1", shard(0, 2, ShardState.LOADING))
    await issue(store, load("w1", 0, 4))
    loaded = await store.load_snapshot()
    assert loaded.issued_plans == 1
    assert loaded.snapshot.presets == (preset().preset,)
    (view,) = loaded.snapshot.workers
    assert view.held == (
        HeldShard(MODEL, ShardRange(0, 2), Holding.LOADING),
        HeldShard(MODEL, ShardRange(2, 4), Holding.ORDERED),
    )


async def test_no_worker_has_speed_zero(store: Store) -> None:
    await register(store, registration("w1", speed=0.0), NOW)
    await beat(store, "w1")
    assert (await store.load_snapshot()).snapshot.workers[0].speed == LEAST_SPEED


async def test_a_worker_counts_from_its_first_heartbeat_on(store: Store) -> None:
    await register(store, registration("w1"), NOW)
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


async def test_changes_since_a_number_are_those_workers_only(store: Store) -> None:
    for name in ("w1", "w2", "w3", "w4"):
        await join(store, name, shard(0, 3))
    numbers = (await store.mesh.changes(MeshNumbers())).numbers
    await beat(store, "w1", shard(0, 4))
    await leave(store, "w2")
    await lose(store, NOW + 1, NOW + 13)
    await beat(store, "w3", shard(0, 3), now=NOW + 14)
    changes = await store.mesh.changes(numbers)
    views = {view.worker_id: view for view in (await store.load_snapshot()).snapshot.workers}
    assert changes.workers == {name: views.get(WorkerId(name)) for name in ("w1", "w2", "w3", "w4")}
    assert set(views) == {"w3"}
    assert (await store.mesh.changes(changes.numbers)).workers == {}


async def test_of_a_worker_with_another_load_nothing_else_is_read(store: Store) -> None:
    for name in ("w1", "w2", "w3"):
        await join(store, name, shard(0, 3))
    numbers = (await store.mesh.changes(MeshNumbers())).numbers
    busy = msgspec.structs.replace(heartbeat(shard(0, 3)), sessions=3, queued=2, kv_bytes_free=5)
    for name in ("w1", "w2"):
        await hear(store, name, busy)
    await issue(store, load("w2", 3, 6))
    changes = await store.mesh.changes(numbers)
    assert changes.loads == {"w1": Load(3, 2, 5)}
    (busy_too,) = changes.workers.values()
    assert busy_too is not None
    assert (busy_too.worker_id, busy_too.sessions) == ("w2", 3)
    after = await store.mesh.changes(changes.numbers)
    assert (after.workers, after.loads) == ({}, {})


@pytest.mark.parametrize("then_busy", [False, True])
async def test_what_a_tracker_of_an_older_release_notes_is_a_change(
    store: Store, transactions: Transactions, *, then_busy: bool
) -> None:
    """It knows one number of a change only, whatever has changed."""
    await join(store, "w1", shard(0, 3))
    await hear(store, "w1", msgspec.structs.replace(heartbeat(shard(0, 3)), sessions=3))
    numbers = (await store.mesh.changes(MeshNumbers())).numbers
    async with transactions.write() as connection:
        number = await counters.advance(connection, Counter.MESH_CHANGE)
        drained = update(workers).values(region="elsewhere", changed=number)
        await connection.execute(drained)
    if then_busy:
        await hear(store, "w1", msgspec.structs.replace(heartbeat(shard(0, 3)), sessions=4))
    changes = await store.mesh.changes(numbers)
    (view,) = changes.workers.values()
    assert view is not None
    assert (view.region, view.sessions) == ("elsewhere", 4 if then_busy else 3)
    assert changes.loads == {}


async def test_orders_of_a_worker_are_changes_of_it(store: Store) -> None:
    await join(store, "w1", shard(0, 3))
    await join(store, "w2", shard(0, 3))
    numbers = (await store.mesh.changes(MeshNumbers())).numbers
    await issue(store, load("w1", 3, 6))
    changes = await store.mesh.changes(numbers)
    assert set(changes.workers) == {"w1"}
    (order,) = await open_for(store, "w1")
    done = DirectiveReport(state=DirectiveState.READY)
    await tell(store, "w1", order.id, done)
    view = (await store.mesh.changes(changes.numbers)).workers[WorkerId("w1")]
    assert view is not None
    assert {held.holding for held in view.held} == {Holding.READY}


async def test_settings_are_read_when_an_operator_changed_them_only(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    first = await store.mesh.changes(MeshNumbers())
    assert first.settings is not None
    assert (await store.mesh.changes(first.numbers)).settings is None
    await store.drains.set(WorkerId("w1"), NOW)
    second = (await store.mesh.changes(first.numbers)).settings
    assert second is not None
    assert second.drained == {"w1"}


async def test_of_a_database_that_went_back_in_time_all_is_read(store: Store) -> None:
    await join(store, "w1")
    known = (await store.mesh.changes(MeshNumbers())).numbers
    later = MeshNumbers(known.change + 5, known.preset_version)
    changes = await store.mesh.changes(later)
    assert changes.is_whole
    assert set(changes.workers) == {"w1"}


def test_speeds_keep_two_digits() -> None:
    rounds = {1234.5: 1200.0, 0.0449: 0.045, 99.6: 100.0, 7.0: 7.0, 0.0: LEAST_SPEED}
    assert {speed: rounded(speed) for speed in rounds} == rounds


@pytest.mark.parametrize(
    ("said", "counted"), [(0.0, 0.0), (5e-324, LEAST_RATE), (3e6, 3e6), (MAX_SPEED, MAX_SPEED)]
)
async def test_a_line_is_never_too_slow_to_compute_with(
    store: Store, said: float, counted: float
) -> None:
    await join(store, "w1")
    body = msgspec.structs.replace(
        heartbeat(), download_bytes_per_sec=said, link_bytes_per_sec=said
    )
    await store.heartbeats.record([Beat(WorkerId("w1"), TOKEN_SHA256, body)], NOW + 600, NOW)
    (view,) = (await store.load_snapshot()).snapshot.workers
    assert (view.download_bytes_per_sec, view.uplink_bytes_per_sec) == (counted, counted)
