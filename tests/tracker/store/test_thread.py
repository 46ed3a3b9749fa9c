import asyncio
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.store.engine import database_url, open_for_threads
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.schema import drains
from meshnet_tracker.store.thread import Threads
from meshnet_tracker.store.transactions import Transactions


async def add(connection: AsyncConnection, name: str) -> None:
    await connection.execute(drains.insert(), [{"worker_id": name, "added_at": 0.0}])


async def count(connection: AsyncConnection) -> int:
    found = await connection.execute(select(func.count()).select_from(drains))
    value: int = found.scalar_one()
    return value


async def test_work_is_one_transaction(transactions: Transactions) -> None:
    async def fail(connection: AsyncConnection) -> None:
        await add(connection, "w1")
        raise ValueError("changed its mind")

    with pytest.raises(ValueError, match="changed"):
        await transactions.write_all(fail)
    assert await transactions.read_all(count) == 0
    await transactions.write_all(lambda connection: add(connection, "w1"))
    assert await transactions.read_all(count) == 1


async def test_work_of_many_callers_is_done_one_after_the_other(
    transactions: Transactions,
) -> None:
    async def one_more(connection: AsyncConnection) -> None:
        await add(connection, f"w{await count(connection)}")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(transactions.write_all(one_more))
    assert await transactions.read_all(count) == 20


async def test_a_database_that_fails_is_told_as_away(transactions: Transactions) -> None:
    async def twice(connection: AsyncConnection) -> None:
        await add(connection, "w1")
        await add(connection, "w1")

    with pytest.raises(DatabaseUnavailableError):
        await transactions.write_all(twice)


async def test_work_that_waits_for_something_else_is_refused(tmp_path: Path) -> None:
    async def wait(_connection: AsyncConnection) -> None:
        await asyncio.sleep(0)

    engine = open_for_threads(database_url(str(tmp_path / "any.sqlite3")))
    threads = Threads(engine, engine)
    with pytest.raises(RuntimeError, match="waited"):
        await threads.write(wait)
    await threads.close()


async def test_who_writes_by_other_means_takes_turns_with_the_thread(tmp_path: Path) -> None:
    engine = open_for_threads(database_url(str(tmp_path / "any.sqlite3")))
    threads = Threads(engine, engine)
    done: list[str] = []

    async def note(name: str) -> None:
        done.append(name)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        async with threads.held():
            tasks.create_task(threads.write(lambda _connection: note("written")))
            # Threads go on meanwhile, but not the one that writes.
            await threads.read(lambda _connection: note("read"))
            await threads.read(lambda _connection: note("read"))
        async with threads.held():
            done.append("held again")
    assert done == ["read", "read", "written", "held again"]
    await threads.close()
