import sqlite3
from pathlib import Path

import pytest

from tests.tracker.running import RunningTracker


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
