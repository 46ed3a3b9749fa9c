import asyncio

from meshnet_common.ids import WorkerId
from meshnet_tracker.store.changes import touch
from meshnet_tracker.store.snapshots import MeshNumbers
from meshnet_tracker.store.store import Store
from meshnet_tracker.store.transactions import Transactions
from tests.tracker.store.meshes import join


async def test_every_change_gets_a_higher_number(store: Store, transactions: Transactions) -> None:
    numbers = []
    for name in ("w1", "w2", "w1"):
        await join(store, name)
        async with transactions.write() as connection:
            await touch(connection, [WorkerId(name)])
        numbers.append((await store.mesh.changes(MeshNumbers())).numbers.change)
    assert numbers == sorted(set(numbers))


async def test_touching_nobody_changes_nothing(store: Store, transactions: Transactions) -> None:
    before = (await store.mesh.changes(MeshNumbers())).numbers
    async with transactions.write() as connection:
        await touch(connection, [])
    assert (await store.mesh.changes(MeshNumbers())).numbers == before


async def test_who_follows_the_numbers_misses_no_change(
    store: Store, transactions: Transactions
) -> None:
    names = [await join(store, f"w{number}") for number in range(8)]
    known = (await store.mesh.changes(MeshNumbers())).numbers
    seen: set[WorkerId] = set()

    async def change(name: WorkerId) -> None:
        async def work(connection: object) -> None:
            await touch(connection, [name])  # type: ignore[arg-type]

        await transactions.write_rows(work)

    async with asyncio.TaskGroup() as tasks:
        changing = [tasks.create_task(change(name)) for name in names]
        while not all(task.done() for task in changing):
            changes = await store.mesh.changes(known)
            known, seen = changes.numbers, seen | set(changes.workers)
            await asyncio.sleep(0)
    changes = await store.mesh.changes(known)
    assert seen | set(changes.workers) == set(names)
