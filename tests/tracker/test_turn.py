import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshnet_common.edge.clock import ManualClock
from meshnet_tracker.bells import Bell
from meshnet_tracker.store.store import Store
from meshnet_tracker.turn import PlanningTurn


@pytest.fixture
async def clock(store: Store) -> ManualClock:
    return ManualClock(await store.clock.now())


@pytest.fixture
async def other_store(store: Store, tmp_path: Path) -> AsyncIterator[Store]:
    del store
    opened = Store.open(str(tmp_path / "tracker.sqlite3"))
    yield opened
    await opened.close()


async def test_it_is_one_trackers_turn_at_a_time(
    store: Store, other_store: Store, clock: ManualClock
) -> None:
    one, other = PlanningTurn(store, clock), PlanningTurn(other_store, clock)
    assert await one.renew()
    assert not await other.renew()
    assert one.term is not None
    assert other.term is None


async def test_a_renewed_turn_is_not_a_new_one(store: Store, clock: ManualClock) -> None:
    turn = PlanningTurn(store, clock)
    assert await turn.renew()
    assert not await turn.renew()


async def test_a_turn_that_could_not_be_renewed_ends_by_itself(
    store: Store, clock: ManualClock
) -> None:
    turn = PlanningTurn(store, clock)
    await turn.renew()
    clock.advance(5)
    assert turn.term is not None
    clock.advance(2)
    assert turn.term is None


async def test_a_turn_that_is_handed_over_is_taken_at_once(
    store: Store, other_store: Store, clock: ManualClock
) -> None:
    one, other, taken = PlanningTurn(store, clock), PlanningTurn(other_store, clock), Bell()
    await one.renew()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(other.run(taken))
        await one.hand_over()
        assert one.term is None
        other.ask_soon()
        await taken.wait(10)
        assert other.term is not None
        asking.cancel()


async def test_who_has_no_turn_hands_nothing_over(
    store: Store, other_store: Store, clock: ManualClock
) -> None:
    one, other = PlanningTurn(store, clock), PlanningTurn(other_store, clock)
    await one.renew()
    await other.hand_over()
    assert not await one.renew()


async def test_failing_passes_are_told_until_one_succeeds_or_another_tracker_plans(
    store: Store, other_store: Store, clock: ManualClock
) -> None:
    one, other = PlanningTurn(store, clock), PlanningTurn(other_store, clock)
    began = clock.now()

    async def told() -> float | None:
        await one.renew()
        return None if one.term is None else one.term.failing_since

    await one.renew()
    one.note_pass(succeeded=False)
    clock.advance(1)
    one.note_pass(succeeded=False)
    assert await told() == began
    one.note_pass(succeeded=True)
    assert await told() == 0.0
    one.note_pass(succeeded=False)
    await one.hand_over()
    await other.renew()
    assert await told() is None
    await other.hand_over()
    assert await told() == 0.0
