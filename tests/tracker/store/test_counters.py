import asyncio

from meshnet_tracker.store.store import Store


async def test_no_two_requests_get_the_same_admission_number(store: Store, database: str) -> None:
    other = Store.open(database)
    numbers: list[int] = []

    async def take(source: Store) -> None:
        numbers.append(await source.next_admission_seq())

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(take(store))
            tasks.create_task(take(other))
    await other.close()
    assert sorted(numbers) == list(range(1, 41))


async def test_admission_numbers_go_on_after_a_restart(store: Store, database: str) -> None:
    first = await store.next_admission_seq()
    other = Store.open(database)
    assert await other.next_admission_seq() == first + 1
    await other.close()
