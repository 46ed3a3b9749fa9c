import asyncio
from collections.abc import Awaitable, Callable

from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from meshnet_tracker.records import Renewals
from meshnet_tracker.store import incarnations
from meshnet_tracker.store.engine import database_url
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW

Taking = Callable[[AsyncConnection, str, int, float], Awaitable[int | None]]


async def test_no_incarnation_is_given_twice_whichever_ticket_is_shown(store: Store) -> None:
    seen = (1, 1, 2, 1, 9, 3)
    taken = [await store.next_incarnation("s1", each, NOW) for each in seen]
    assert taken == [2, 3, 4, 5, 10, 11]


async def test_sessions_count_apart(store: Store) -> None:
    assert await store.next_incarnation("s1", 1, NOW) == 2
    assert await store.next_incarnation("s2", 1, NOW) == 2


async def test_renewals_at_once_get_different_incarnations(store: Store) -> None:
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(store.next_incarnation("s1", 1, NOW)) for _ in range(8)]
    assert sorted(each.result() or 0 for each in asked) == list(range(2, 10))


async def test_tickets_from_before_the_head_moved_get_nothing(store: Store) -> None:
    assert await store.next_incarnation("s1", 1, NOW) == 2
    assert await store.move_head("s1", 1, NOW) == 3
    assert (await store.renewals("s1")).head_since == 3
    for old in (1, 2):
        assert await store.next_incarnation("s1", old, NOW) is None
    assert await store.next_incarnation("s1", 3, NOW) == 4


async def test_a_head_can_move_before_any_renewal_and_again(store: Store) -> None:
    assert (await store.renewals("s1")).head_since == 0
    assert await store.move_head("s1", 1, NOW) == 2
    assert await store.move_head("s1", 2, NOW) == 3
    assert await store.next_incarnation("s1", 2, NOW) is None


async def test_sessions_that_were_not_renewed_for_long_are_forgotten(store: Store) -> None:
    await store.move_head("old", 1, NOW)
    await store.move_head("renewed", 1, NOW)
    await store.next_incarnation("renewed", 2, NOW + 50)
    await store.sweep_incarnations(NOW + 10)
    assert (await store.renewals("old"), await store.renewals("renewed")) == (
        Renewals(),
        Renewals(head_since=2, renewed_at=NOW + 50),
    )
    await store.sweep_incarnations(NOW + 10)


async def test_renewals_of_which_no_transaction_waits_for_the_other_get_different_incarnations(
    database: str,
) -> None:
    # Each statement by itself: so other transactions' statements may come between, as elsewhere.
    engine = create_async_engine(database_url(database), isolation_level="AUTOCOMMIT")

    async def taken_by_two(take: Taking, session_id: str) -> list[int]:
        async def taken() -> list[int]:
            async with engine.connect() as connection:
                return [await take(connection, session_id, 1, NOW) or 0 for _ in range(30)]

        async with asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(taken()) for _ in range(2)]
        return sorted(both[0].result() + both[1].result())

    assert await taken_by_two(incarnations.take_next, "s1") == list(range(2, 62))
    assert await taken_by_two(incarnations.move_head, "s2") == list(range(2, 62))
    await engine.dispose()
