import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from meshnet_tracker.bells import Bell
from tests.tracker.running import RunningTracker, until


@pytest.mark.parametrize("where", ["/healthz", "/health", "/readyz", "/ready"])
async def test_a_working_tracker_is_alive_and_ready(tracker: RunningTracker, where: str) -> None:
    assert (await tracker.get(where)).status == 200


async def test_a_tracker_whose_schema_is_not_current_is_alive_but_not_ready(
    tracker: RunningTracker, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "tracker.sqlite3") as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    reply = await tracker.get("/readyz")
    assert (reply.status, reply.json) == (503, {"status": "database unavailable"})
    assert (await tracker.get("/healthz")).status == 200


async def test_a_tracker_whose_database_takes_nothing_is_alive_but_not_ready(
    tracker: RunningTracker, tmp_path: Path
) -> None:
    turn, bell = tracker.services.turn, Bell()
    database = tmp_path / "tracker.sqlite3"
    with closing(sqlite3.connect(database, isolation_level=None)) as raw:
        async with asyncio.TaskGroup() as tasks:
            raw.execute("ALTER TABLE leadership RENAME TO hidden")
            asking = tasks.create_task(turn.run(bell))
            await until(lambda: not turn.can_write)
            assert (await tracker.get("/readyz")).status == 503
            assert (await tracker.get("/healthz")).status == 200
            raw.execute("ALTER TABLE hidden RENAME TO leadership")
            turn.ask_soon()
            await until(lambda: turn.can_write)
            assert (await tracker.get("/readyz")).status == 200
            asking.cancel()
