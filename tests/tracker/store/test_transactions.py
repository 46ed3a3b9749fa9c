import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.edge.clock import loop_time
from meshnet_tracker.store import thread
from meshnet_tracker.store.engine import BUSY_MILLISECONDS, database_url, open_engine
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.thread import TURN_SECONDS
from meshnet_tracker.store.transactions import Transactions

MANY = 8
SLACK_SECONDS = 4.0
"""For a busy machine; without a deadline of their turn they would take over a minute."""


@pytest.fixture
async def transactions(tmp_path: Path) -> AsyncIterator[Transactions]:
    opened = Transactions(open_engine(database_url(str(tmp_path / "t.sqlite3"))))
    yield opened
    await opened.close()


async def test_what_fails_half_way_leaves_nothing(transactions: Transactions) -> None:
    async with transactions.write() as connection:
        await connection.execute(text("CREATE TABLE things (name TEXT)"))
    with pytest.raises(DatabaseUnavailableError) as caught:
        await _insert_two(transactions)
    assert "INSERT" not in str(caught.value)
    async with transactions.read() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM things"))).scalar_one() == 0


async def test_a_file_is_a_sqlite_database(transactions: Transactions) -> None:
    assert transactions.is_sqlite


async def test_of_many_who_want_to_write_to_a_locked_file_nobody_waits_for_all_the_others(
    transactions: Transactions, tmp_path: Path
) -> None:
    async def write() -> None:
        async with transactions.write() as connection:
            await _look(connection)

    ways: list[Callable[[], Awaitable[object]]] = [
        write,
        lambda: transactions.write_all(_look),
        lambda: transactions.write_rows(_look),
    ]
    await transactions.write_all(_look)
    with closing(sqlite3.connect(tmp_path / "t.sqlite3", isolation_level=None)) as keeper:
        keeper.execute("BEGIN IMMEDIATE")
        async with asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(_refused_after(way)) for way in ways * MANY]
        keeper.execute("ROLLBACK")
    most_seconds = TURN_SECONDS + BUSY_MILLISECONDS / 1000 + SLACK_SECONDS
    assert max(wait.result() for wait in waits) < most_seconds
    async with asyncio.timeout(10):
        for way in ways:
            await way()


@pytest.mark.parametrize("way", ["write_all", "write_rows", "read_all"])
async def test_a_disk_that_does_not_answer_is_told_as_away(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(thread, "WORK_SECONDS", 0.2)
    monkeypatch.setattr(thread, "TURN_SECONDS", 0.2)
    answers = threading.Event()
    begun: list[None] = []

    async def hang(connection: AsyncConnection) -> None:
        begun.append(None)
        await _look(connection)
        answers.wait(20)

    do = getattr(transactions, way)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for _ in range(MANY):
            tasks.create_task(_refused_after(lambda: do(hang)))
    answers.set()
    await do(_look)
    # Who was told so before its turn came is not done afterwards.
    assert len(begun) <= thread.READERS


async def test_a_power_cut_takes_only_what_is_said_to_be_passing(
    transactions: Transactions,
) -> None:
    async def level(connection: AsyncConnection) -> int:
        value: int = (await connection.execute(text("PRAGMA synchronous"))).scalar_one()
        return value

    full, normal = 2, 1
    for _ in range(2):
        assert await transactions.write_passing(level) == normal
        assert await transactions.write_passing_rows(level) == normal
        assert await transactions.write_all(level) == full
        assert await transactions.write_rows(level) == full
        async with transactions.write() as connection:
            assert await level(connection) == full


async def _look(connection: AsyncConnection) -> None:
    await connection.execute(text("SELECT 1"))


async def _refused_after(call: Callable[[], Awaitable[object]]) -> float:
    began = loop_time()
    with pytest.raises(DatabaseUnavailableError):
        await call()
    return loop_time() - began


async def _insert_two(transactions: Transactions) -> None:
    async with transactions.write() as connection:
        await connection.execute(text("INSERT INTO things VALUES ('a')"))
        await connection.execute(text("INSERT INTO nothing VALUES ('b')"))
