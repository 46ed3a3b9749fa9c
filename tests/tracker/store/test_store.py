import asyncio
import sqlite3
from pathlib import Path

import pytest

from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset, registration
from tests.tracker.store.meshes import register


async def test_what_one_tracker_writes_another_reads(store: Store, database: str) -> None:
    other = Store.open(database)
    await store.add_preset(preset(), NOW)
    assert await other.presets() == (preset(),)
    await other.close()


async def test_a_failed_method_leaves_nothing_half_done(store: Store) -> None:
    broken = registration("w1", vram_bytes=2**70)
    with pytest.raises((DatabaseUnavailableError, OverflowError)):
        await register(store, broken, NOW)
    assert await store.workers() == ()


async def test_a_cancelled_writer_does_not_hold_up_the_next(
    sqlite_store: Store, tmp_path: Path
) -> None:
    store = sqlite_store
    blocker = sqlite3.connect(tmp_path / "tracker.sqlite3", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        writer = tasks.create_task(store.add_preset(preset("cancelled"), NOW))
        await store.presets()
        writer.cancel()
        blocker.execute("COMMIT")
        blocker.close()
    await store.add_preset(preset("next"), NOW)
    assert [record.preset.name for record in await store.presets()] == ["next"]


async def test_a_database_that_went_away_is_reported_without_its_statement(
    sqlite_store: Store, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "tracker.sqlite3") as raw:
        raw.execute("DROP TABLE presets")
    raw.close()
    with pytest.raises(DatabaseUnavailableError) as caught:
        await sqlite_store.presets()
    assert "SELECT" not in str(caught.value)
