import asyncio

import pytest

from meshnet_tracker import view
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.snapshots import MeshChanges, MeshNumbers
from meshnet_tracker.store.store import Store
from meshnet_tracker.store.workers import FORGET_GONE_AFTER_SECONDS
from meshnet_tracker.view import MeshView
from tests.tracker.builders import NOW, shard
from tests.tracker.store.meshes import beat, join, leave


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
    for number in range(5):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(mesh.snapshot())
            await asyncio.sleep(0)
            await join(store, f"w{number}", shard(0, 6))
            mesh.forget()
        assert len((await mesh.snapshot()).workers) == number + 1


async def test_workers_that_did_not_change_keep_their_views(store: Store) -> None:
    mesh = MeshView(store)
    for name in ("w1", "w2", "w3"):
        await join(store, name, shard(0, 6))
    before = await mesh.snapshot()
    mesh.forget()
    assert await mesh.snapshot() is before
    await beat(store, "w2", shard(0, 5))
    mesh.forget()
    after = await mesh.snapshot()
    same = [old is new for old, new in zip(before.workers, after.workers, strict=True)]
    assert same == [True, False, True]
    assert after == (await store.load_snapshot()).snapshot


async def test_the_route_table_follows_the_mesh(store: Store) -> None:
    mesh = MeshView(store)
    for name in ("w1", "w2"):
        await join(store, name, shard(0, 6))
    table = await mesh.routes()
    assert list(table.names()) == ["w1", "w2"]
    await leave(store, "w1")
    mesh.forget()
    assert await mesh.routes() is table
    assert list(table.names()) == ["w2"]


async def test_what_is_forgotten_while_nobody_read_is_not_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = MeshView(store)
    await join(store, "w1", shard(0, 6))
    assert len((await mesh.snapshot()).workers) == 1
    await leave(store, "w1")
    await store.losses.sweep(NOW + FORGET_GONE_AFTER_SECONDS + 1)
    monkeypatch.setattr(view, "WHOLE_AGAIN_SECONDS", 0.0)
    mesh.forget()
    assert (await mesh.snapshot()).workers == ()


async def test_a_database_that_is_away_does_not_end_the_keeping_warm(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = MeshView(store)
    reads = asyncio.Semaphore(0)

    async def is_away(_since: MeshNumbers) -> MeshChanges:
        reads.release()
        raise DatabaseUnavailableError

    monkeypatch.setattr(view, "KEEP_WARM_SECONDS", 0.0)
    monkeypatch.setattr(store.mesh, "changes", is_away)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(mesh.run())
        for _ in range(3):
            await reads.acquire()
        keeping.cancel()
