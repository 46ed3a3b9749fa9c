import asyncio

from meshnet_tracker import view
from meshnet_tracker.store.store import Store
from meshnet_tracker.view import MeshView
from tests.tracker.builders import shard
from tests.tracker.store.meshes import join


async def test_readers_within_half_a_second_share_one_reading(store: Store) -> None:
    mesh = MeshView(store)
    async with asyncio.TaskGroup() as tasks:
        readings = [tasks.create_task(mesh.snapshot()) for _ in range(10)]
    assert len({id(reading.result()) for reading in readings}) == 1


async def test_a_change_that_was_told_is_seen_at_once(store: Store) -> None:
    mesh = MeshView(store)
    assert (await mesh.snapshot()).workers == ()
    await join(store, "w1", shard(0, 6))
    mesh.forget()
    assert len((await mesh.snapshot()).workers) == 1


async def test_a_change_that_nobody_told_is_seen_by_itself(store: Store) -> None:
    mesh = MeshView(store)
    assert (await mesh.snapshot()).workers == ()
    await join(store, "w1", shard(0, 6))
    async with asyncio.timeout(view.FRESH_SECONDS + 5):
        while True:
            if (await mesh.snapshot()).workers:
                break
            await asyncio.sleep(0.01)


async def test_a_change_told_during_a_reading_is_not_hidden_by_it(store: Store) -> None:
    mesh = MeshView(store)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(mesh.snapshot())
        await asyncio.sleep(0)
        mesh.forget()
    assert await mesh.snapshot() is not reading.result()
