from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from meshnet_tracker.store.engine import database_url, open_engine
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.transactions import Transactions


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


async def _insert_two(transactions: Transactions) -> None:
    async with transactions.write() as connection:
        await connection.execute(text("INSERT INTO things VALUES ('a')"))
        await connection.execute(text("INSERT INTO nothing VALUES ('b')"))
