import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import (
    Directive,
    DirectiveReport,
    DirectiveState,
    ShardState,
)
from meshnet_tracker.planning.snapshot import RebalanceDirective
from meshnet_tracker.store.revisions import Weights
from meshnet_tracker.store.store import Store
from tests.tracker.builders import DIGEST, MODEL, NOW, drop, load, preset, shard
from tests.tracker.store.meshes import beat, issue, join, open_for, tell

W1 = WorkerId("w1")


async def ordered(store: Store, directive: RebalanceDirective) -> Directive:
    await issue(store, directive)
    return (await open_for(store, "w1"))[-1]


async def report(
    store: Store,
    order: Directive,
    state: DirectiveState,
    bytes_done: int = 0,
    now: float = NOW,
) -> DirectiveState | None:
    body = DirectiveReport(state=state, bytes_done=bytes_done, bytes_total=1000)
    return await tell(store, "w1", order.id, body, now)


async def test_a_finished_load_covers_before_the_next_heartbeat(store: Store) -> None:
    await store.add_preset(preset(layers=6), NOW)
    await join(store, "w1")
    order = await ordered(store, load("w1", 0, 6))
    await beat(store, "w1", shard(0, 6, ShardState.LOADING))
    await report(store, order, DirectiveState.READY)
    (row,) = await store.coverage(MODEL, Weights(DIGEST, 6))
    assert row.worker_count == 1
    (worker,) = await store.workers()
    assert (worker.shards[0].is_tail, worker.directives) == (True, ())


async def test_a_finished_drop_does_not_cover_again(store: Store) -> None:
    await join(store, "w1", shard(0, 6))
    order = await ordered(store, drop("w1", 3, 6))
    await report(store, order, DirectiveState.READY)
    rows = await store.coverage(MODEL, Weights(DIGEST, 6))
    assert [row.worker_count for row in rows] == [1, 0]


async def test_a_failed_load_leaves_nothing_loading_and_cools_down(store: Store) -> None:
    await join(store, "w1", shard(0, 6, ShardState.LOADING))
    order = await ordered(store, load("w1", 0, 8))
    await report(store, order, DirectiveState.FAILED)
    (worker,) = await store.workers()
    assert (worker.shards, worker.failures) == ((), 1)


@pytest.mark.parametrize(("dropped", "failures"), [((6, 8), 0), ((0, 6), 1)])
async def test_a_load_that_a_newer_drop_calls_off_is_no_failure(
    store: Store, dropped: tuple[int, int], failures: int
) -> None:
    await join(store, "w1", shard(0, 6))
    order = await ordered(store, load("w1", 6, 8))
    await issue(store, drop("w1", *dropped))
    await report(store, order, DirectiveState.FAILED)
    (worker,) = await store.workers()
    assert worker.failures == failures


async def test_success_forgives_earlier_failures(store: Store) -> None:
    await join(store, "w1")
    await report(store, await ordered(store, load("w1", 0, 3)), DirectiveState.FAILED)
    await report(store, await ordered(store, load("w1", 0, 3)), DirectiveState.READY)
    (worker,) = await store.workers()
    assert (worker.failures, worker.cooling_until) == (0, 0.0)


async def test_progress_moves_the_deadline_and_standing_still_does_not(store: Store) -> None:
    await join(store, "w1")
    order = await ordered(store, load("w1", 0, 3))
    await report(store, order, DirectiveState.LOADING, bytes_done=10, now=NOW + 500)
    await report(store, order, DirectiveState.LOADING, bytes_done=10, now=NOW + 900)
    (moved,) = await open_for(store, "w1")
    assert moved.deadline == NOW + 1100


async def test_progress_in_a_heartbeat_moves_the_deadline_as_well(store: Store) -> None:
    await join(store, "w1")
    await ordered(store, load("w1", 0, 3))
    await beat(store, "w1", shard(0, 3, ShardState.LOADING, bytes_done=10), now=NOW + 500)
    (moved,) = await open_for(store, "w1")
    assert moved.deadline == NOW + 1100


async def test_a_late_report_does_not_reopen_a_finished_directive(store: Store) -> None:
    await join(store, "w1")
    order = await ordered(store, load("w1", 0, 3))
    await report(store, order, DirectiveState.READY)
    assert await report(store, order, DirectiveState.LOADING) is DirectiveState.READY


async def test_a_report_that_was_overtaken_changes_nothing(store: Store) -> None:
    await join(store, "w1")
    order = await ordered(store, load("w1", 0, 3))
    await report(store, order, DirectiveState.LOADING)
    assert await report(store, order, DirectiveState.ACCEPTED) is DirectiveState.LOADING


async def test_a_directive_of_another_worker_is_unknown(store: Store) -> None:
    await join(store, "w1")
    await join(store, "w2")
    await issue(store, load("w2", 0, 3))
    (order,) = await open_for(store, "w2")
    assert await report(store, order, DirectiveState.READY) is None
