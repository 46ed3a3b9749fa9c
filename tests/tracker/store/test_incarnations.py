import asyncio

from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW


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
    assert await store.head_since("s1") == 3
    for old in (1, 2):
        assert await store.next_incarnation("s1", old, NOW) is None
    assert await store.next_incarnation("s1", 3, NOW) == 4


async def test_a_head_can_move_before_any_renewal_and_again(store: Store) -> None:
    assert await store.head_since("s1") == 0
    assert await store.move_head("s1", 1, NOW) == 2
    assert await store.move_head("s1", 2, NOW) == 3
    assert await store.next_incarnation("s1", 2, NOW) is None


async def test_sessions_that_were_not_renewed_for_long_are_forgotten(store: Store) -> None:
    await store.move_head("old", 1, NOW)
    await store.move_head("renewed", 1, NOW)
    await store.next_incarnation("renewed", 2, NOW + 50)
    await store.sweep_incarnations(NOW + 10)
    assert (await store.head_since("old"), await store.head_since("renewed")) == (0, 2)
    await store.sweep_incarnations(NOW + 10)
