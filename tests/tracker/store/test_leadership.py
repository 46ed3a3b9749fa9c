import asyncio
from collections.abc import AsyncIterator

import pytest

from meshnet_tracker.records import Term
from meshnet_tracker.store import leadership
from meshnet_tracker.store.errors import StaleTermError
from meshnet_tracker.store.store import Store


@pytest.fixture
async def other(database: str) -> AsyncIterator[Store]:
    """A second Tracker's view of the same database."""
    opened = Store.open(database)
    yield opened
    await opened.close()


async def taken(store: Store, holder: str, lease_seconds: float = 60.0) -> Term:
    term = await store.leadership.take(holder, lease_seconds)
    assert term is not None
    return term


async def check(store: Store, term: Term) -> None:
    async with store._transactions.write() as connection:
        await leadership.check(connection, term)


async def test_the_first_one_who_asks_plans_and_keeps_its_term(store: Store, other: Store) -> None:
    assert await store.leadership.current() is None
    first = await taken(store, "one")
    assert (first.holder, first.number) == ("one", 1)
    assert await other.leadership.take("two") is None
    again = await taken(store, "one")
    assert again.number == 1
    assert again.expires_at >= first.expires_at
    assert await other.leadership.current() == again


async def test_a_lease_that_ran_out_is_taken_over_with_a_new_term(
    store: Store, other: Store
) -> None:
    old = await taken(store, "one", lease_seconds=0.0)
    assert await store.leadership.current() is None
    new = await taken(other, "two")
    assert new.number == old.number + 1
    assert await store.leadership.take("one") is None


async def test_who_hands_over_is_followed_at_once(store: Store, other: Store) -> None:
    term = await taken(store, "one")
    await store.leadership.hand_over(term)
    assert (await taken(other, "two")).number == 2


async def test_an_old_term_cannot_be_handed_over_any_more(store: Store, other: Store) -> None:
    old = await taken(store, "one", lease_seconds=0.0)
    new = await taken(other, "two")
    await store.leadership.hand_over(old)
    assert await other.leadership.current() == new


async def test_of_many_who_ask_at_once_one_plans(store: Store, other: Store) -> None:
    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(source.leadership.take(f"{number}"))
            for number, source in enumerate([store, other] * 10)
        ]
    assert len([term for task in asked if (term := task.result())]) == 1


async def test_what_was_decided_under_an_old_term_is_refused(store: Store, other: Store) -> None:
    old = await taken(store, "one", lease_seconds=0.0)
    await check(store, old)
    new = await taken(other, "two")
    with pytest.raises(StaleTermError, match="Its term is 1, now it is 2"):
        await check(store, old)
    await check(other, new)


async def test_without_any_term_nothing_is_decided(store: Store) -> None:
    with pytest.raises(StaleTermError):
        await check(store, Term("one", 1, 0.0))


async def test_nobody_takes_over_between_the_check_and_the_commit(
    store: Store, other: Store
) -> None:
    late = await taken(store, "one", lease_seconds=0.0)
    async with (
        asyncio.timeout(10),
        asyncio.TaskGroup() as tasks,
        store._transactions.write() as connection,
    ):
        await leadership.check(connection, late)
        taking = tasks.create_task(other.leadership.take("two"))
        # Long enough for a statement that waits for nothing.
        for _ in range(3):
            await store.clock.now()
        assert not taking.done()
    assert (taking.result() or late).number == 2
