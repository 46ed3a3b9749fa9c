import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReport, DirectiveState
from meshnet_tracker.planning.snapshot import RebalanceDirective
from meshnet_tracker.store import directives
from meshnet_tracker.store.directives import KEEP_CLOSED_SECONDS, MAX_EPOCH_JUMP
from meshnet_tracker.store.errors import StaleSnapshotError, StaleTermError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, drop, heartbeat, load, preset, shard
from tests.tracker.store.meshes import beat, hear, issue, join, leave, lose, open_for, tell, turn

W1 = WorkerId("w1")


async def test_a_worker_gets_its_own_directives_above_its_epoch(store: Store) -> None:
    await join(store, "w1")
    await join(store, "w2")
    assert await issue(store, load("w1", 0, 3), load("w2", 3, 6)) == ("w1", "w2")
    (first,) = await open_for(store, "w1")
    assert (first.epoch, first.start_layer, first.end_layer) == (1, 0, 3)
    assert first.deadline == NOW + 600
    assert await open_for(store, "w1", epoch=first.epoch) == []


async def test_the_same_directive_is_issued_once(store: Store) -> None:
    await join(store, "w1")
    await issue(store, load("w1", 0, 3))
    assert await issue(store, load("w1", 0, 3)) == ()
    assert len(await open_for(store, "w1")) == 1


async def test_epochs_never_repeat(store: Store) -> None:
    await join(store, "w1")
    await issue(store, load("w1", 0, 3), load("w1", 4, 6))
    await leave(store, W1)
    await join(store, "w1")
    await issue(store, load("w1", 0, 3))
    assert [order.epoch for order in await open_for(store, "w1")] == [3]


async def test_a_plan_on_an_old_snapshot_is_not_issued(store: Store) -> None:
    await join(store, "w1")
    old = (await store.load_snapshot()).issued_plans
    await issue(store, load("w1", 0, 3))
    with pytest.raises(StaleSnapshotError):
        await store.issue_directives([load("w1", 3, 6)], old, 600, NOW, await turn(store))


async def test_a_drop_is_not_issued_if_its_second_copy_was_lost_meanwhile(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    await join(store, "w1", shard(0, 6))
    await join(store, "w2", shard(0, 6), now=NOW - 100)
    loaded = await store.load_snapshot()
    await lose(store, NOW - 50, NOW)
    term = await turn(store)
    assert (
        await store.issue_directives([drop("w1", 0, 3)], loaded.issued_plans, 600, NOW, term) == ()
    )


async def test_a_drop_counts_on_everybody_who_holds_some_of_its_layers(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    await join(store, "w1", shard(0, 6))
    await join(store, "w2", shard(2, 6))
    assert await issue(store, drop("w1", 0, 3)) == ()
    await join(store, "w3", shard(0, 2))
    assert await issue(store, drop("w1", 0, 3)) == ("w1",)


async def test_a_refused_drop_is_not_asked_for_again_at_once(store: Store) -> None:
    await join(store, "w1", shard(0, 6))
    await issue(store, drop("w1", 0, 6))
    (order,) = await open_for(store, "w1")
    refused = DirectiveReport(state=DirectiveState.FAILED, reason="It would open a gap.")
    await tell(store, "w1", order.id, refused)
    assert await issue(store, drop("w1", 0, 6), now=NOW + 5) == ()
    assert await issue(store, drop("w1", 0, 6), now=NOW + 15) == ("w1",)


async def test_a_directive_past_its_deadline_expires_and_its_worker_cools_down(
    store: Store,
) -> None:
    await join(store, "w1")
    await issue(store, load("w1", 0, 3), deadline_seconds=60)
    term = await turn(store)
    assert await store.expire_directives(NOW + 60, term) == ()
    (expired,) = await store.expire_directives(NOW + 61, term)
    assert expired.start_layer == 0
    (worker,) = await store.workers()
    assert (worker.directives, worker.cooling_until) == ((), NOW + 71)


async def test_epochs_continue_above_what_a_worker_has_seen(store: Store) -> None:
    await join(store, "w1")
    seen = heartbeat(directive_epoch=41)
    assert await hear(store, W1, seen)
    await issue(store, load("w1", 0, 3))
    assert [order.epoch for order in await open_for(store, "w1")] == [42]


async def test_an_open_directive_is_lifted_above_a_forgotten_epoch(store: Store) -> None:
    await join(store, "w1")
    await issue(store, load("w1", 0, 3))
    assert await store.observe_epoch(W1, 41)
    assert [order.epoch for order in await open_for(store, "w1", epoch=41)] == [42]


async def test_an_absurd_epoch_is_not_believed(store: Store) -> None:
    await join(store, "w1")
    assert not await store.observe_epoch(W1, MAX_EPOCH_JUMP + 1)
    assert await store.directives_issued_above(0) == (0, ())


async def claim_by_heartbeat(store: Store, epoch: int) -> None:
    await hear(store, "liar", heartbeat(directive_epoch=epoch))


async def claim_by_poll(store: Store, epoch: int) -> None:
    assert await store.observe_epoch(WorkerId("liar"), epoch)


@pytest.mark.parametrize("claim", [claim_by_heartbeat, claim_by_poll])
async def test_a_worker_that_claims_ever_newer_epochs_holds_up_no_plan(
    store: Store, claim: Callable[[Store, int], Awaitable[None]]
) -> None:
    for name in ("w1", "liar"):
        await join(store, name)
    await issue(store, load("liar", 0, 6))
    for layer in range(3):
        plans = (await store.load_snapshot()).issued_plans
        newest, _ = await store.directives_issued_above(0)
        await claim(store, newest + 1)
        order = load("w1", layer, layer + 1)
        assert await store.issue_directives([order], plans, 600, NOW, await turn(store)) == (order,)
    epochs = [order.epoch for order in await open_for(store, "w1")]
    assert epochs == sorted(set(epochs))


async def test_new_directives_of_another_tracker_are_found_by_epoch(store: Store) -> None:
    await join(store, "w1")
    await join(store, "w2")
    await issue(store, load("w1", 0, 3))
    await issue(store, load("w2", 3, 6))
    assert await store.directives_issued_above(1) == (2, ("w2",))
    assert await store.directives_issued_above(2) == (2, ())


async def test_an_open_drop_outlives_heartbeats_that_still_say_ready(store: Store) -> None:
    await join(store, "w1", shard(0, 6))
    await issue(store, drop("w1", 3, 6))
    await beat(store, "w1", shard(0, 6))
    assert len(await open_for(store, "w1")) == 1


async def test_a_drop_may_not_count_on_a_worker_that_leaves(store: Store) -> None:
    for name in ("w1", "w2"):
        await join(store, name, shard(0, 6))
    await store.add_preset(preset(), NOW)
    await beat(store, "w2", shard(0, 6), leaving=True)
    assert await issue(store, drop("w1", 0, 6)) == ()


async def test_a_tracker_that_wakes_up_late_issues_nothing(store: Store, database: str) -> None:
    await join(store, "w1")
    late = await store.leadership.take("late", lease_seconds=0.0)
    plans = (await store.load_snapshot()).issued_plans
    other = Store.open(database)
    await turn(other, "other")
    assert late is not None
    with pytest.raises(StaleTermError):
        await store.issue_directives([load("w1", 0, 3)], plans, 600, NOW, late)
    with pytest.raises(StaleTermError):
        await store.losses.mark([W1], NOW + 1, NOW + 2, late)
    assert await open_for(store, "w1") == []
    assert await issue_as(other, "other", load("w1", 0, 3)) == ("w1",)
    with pytest.raises(StaleTermError):
        await store.expire_directives(NOW + 6000, late)
    await other.close()


async def test_of_two_trackers_that_issue_the_same_plan_one_does(
    store: Store, database: str
) -> None:
    await join(store, "w1")
    other = Store.open(database)
    plans, term = (await store.load_snapshot()).issued_plans, await turn(store)
    issued: list[RebalanceDirective] = []
    refused: list[StaleSnapshotError] = []

    async def try_to_issue(source: Store) -> None:
        try:
            planned = [load("w1", 0, 3)]
            issued.extend(await source.issue_directives(planned, plans, 600, NOW, term))
        except StaleSnapshotError as error:
            refused.append(error)

    async with asyncio.TaskGroup() as tasks:
        for source in (store, other):
            tasks.create_task(try_to_issue(source))
    await other.close()
    assert (len(issued), len(refused)) == (1, 1)
    assert len(await open_for(store, "w1")) == 1


async def test_a_directive_has_its_own_deadline_and_says_what_it_is_for(store: Store) -> None:
    await join(store, "w1")
    order = replace(load("w1", 0, 3), deadline_seconds=42.0, why="It closes the gap.")
    await issue(store, order)
    (directive,) = await open_for(store, "w1")
    assert directive.deadline == NOW + 42


async def issue_as(store: Store, holder: str, *planned: RebalanceDirective) -> tuple[WorkerId, ...]:
    plans, term = (await store.load_snapshot()).issued_plans, await turn(store, holder)
    issued = await store.issue_directives(planned, plans, 600, NOW, term)
    return tuple(directive.worker_id for directive in issued)


async def test_what_was_closed_long_ago_is_forgotten_and_what_is_open_never(store: Store) -> None:
    await join(store, "w1")
    await issue(store, load("w1", 0, 3), deadline_seconds=10)
    await issue(store, load("w1", 3, 6), deadline_seconds=10 * KEEP_CLOSED_SECONDS)
    closed_at = NOW + 11
    await store.expire_directives(closed_at, await turn(store))
    await store.losses.sweep(closed_at + KEEP_CLOSED_SECONDS)
    assert len(await store.operations.closed_directives(NOW, closed_at)) == 1
    await store.losses.sweep(closed_at + KEEP_CLOSED_SECONDS + 1)
    assert await store.operations.closed_directives(NOW, closed_at) == ()
    assert [order.start_layer for order in await open_for(store, "w1")] == [3]


async def test_of_very_many_closed_ones_some_are_forgotten_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directives, "MOST_FORGOTTEN_AT_ONCE", 2)
    await join(store, "w1")
    await issue(store, *(load("w1", layer, layer + 1) for layer in range(3)), deadline_seconds=1)
    await store.expire_directives(NOW + 2, await turn(store))
    for left in (1, 0):
        await store.losses.sweep(NOW + 3 + KEEP_CLOSED_SECONDS)
        assert len(await store.operations.closed_directives(NOW, NOW + 2)) == left
