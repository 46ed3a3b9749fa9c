"""What every database has to keep, whichever it is; more of it is tested beside each store module.

`store` and `other` are two Trackers' views of one database, on SQLite and on a real PostgreSQL.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshnet_tracker.store.store import Store
from tests.tracker.databases import KINDS, empty_postgres


@pytest.fixture(params=KINDS)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Name an empty database with this release's tables."""
    if request.param == "postgresql":
        async with empty_postgres() as url:
            yield url
        return
    store = Store.open(str(tmp_path / "tracker.sqlite3"))
    await store.migrate()
    await store.close()
    yield str(tmp_path / "tracker.sqlite3")


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    opened = Store.open(database)
    yield opened
    await opened.close()


@pytest.fixture
async def other(database: str) -> AsyncIterator[Store]:
    opened = Store.open(database)
    yield opened
    await opened.close()
