"""Every test of the store that asks for `store` or `database` runs on each kind of database."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshnet_tracker.store.engine import database_url, open_engine
from meshnet_tracker.store.store import Store
from meshnet_tracker.store.transactions import Transactions
from tests.tracker.databases import KINDS, empty_postgres


@pytest.fixture(params=KINDS)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Name an empty database with this release's tables."""
    if request.param == "postgresql":
        async with empty_postgres() as url:
            yield url
    else:
        yield await _migrated_file(tmp_path)


@pytest.fixture
async def sqlite_file(tmp_path: Path) -> str:
    """Name a SQLite file with this release's tables, for what only SQLite has."""
    return await _migrated_file(tmp_path)


@pytest.fixture
async def sqlite_store(sqlite_file: str) -> AsyncIterator[Store]:
    opened = Store.open(sqlite_file)
    yield opened
    await opened.close()


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    opened = Store.open(database)
    yield opened
    await opened.close()


async def _migrated_file(folder: Path) -> str:
    file = str(folder / "tracker.sqlite3")
    opened = Store.open(file)
    await opened.migrate()
    await opened.close()
    return file


@pytest.fixture
async def transactions(database: str) -> AsyncIterator[Transactions]:
    """Open the same database for what lies below the Store."""
    opened = Transactions(open_engine(database_url(database)))
    yield opened
    await opened.close()
