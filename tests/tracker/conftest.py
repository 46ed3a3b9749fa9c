"""A real SQLite file with the real schema, and a real Tracker on loopback, for who asks for it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset
from tests.tracker.running import RunningTracker, running_tracker


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store.open(str(tmp_path / "tracker.sqlite3"))
    await opened.migrate()
    yield opened
    await opened.close()


@pytest.fixture
async def empty_tracker(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    async with running_tracker(tmp_path / "tracker.sqlite3") as running:
        yield running


@pytest.fixture
async def tracker(empty_tracker: RunningTracker) -> RunningTracker:
    """A Tracker that knows `tiny`: six Layers of 1,000 bytes in bfloat16."""
    await empty_tracker.store.add_preset(preset(), NOW)
    return empty_tracker
