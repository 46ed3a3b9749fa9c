"""A real SQLite file with the real schema for every test that asks for a store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshnet_tracker.store.store import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store.open(str(tmp_path / "tracker.sqlite3"))
    await opened.migrate()
    yield opened
    await opened.close()
