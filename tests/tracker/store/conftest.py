"""Every test of the store that asks for `store` or `database` runs on each kind of database."""

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
    file = str(tmp_path / "tracker.sqlite3")
    opened = Store.open(file)
    await opened.migrate()
    await opened.close()
    yield file


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    opened = Store.open(database)
    yield opened
    await opened.close()
