import sqlite3
from pathlib import Path

from tests.tracker.running import CHAT, RunningTracker


async def test_a_broken_database_is_a_503_without_its_details(
    tracker: RunningTracker, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "tracker.sqlite3") as raw:
        raw.execute("DROP TABLE variants")
    raw.close()
    for reply in (
        await tracker.get("/v1/models"),
        await tracker.post("/v1/chat/completions", CHAT),
    ):
        assert (reply.status, reply.error["code"]) == (503, "database_unavailable")
        assert "variants" not in reply.error["message"]
        assert reply.headers["Retry-After"] == "5"


async def test_what_is_nowhere_or_not_allowed_has_the_same_shape(tracker: RunningTracker) -> None:
    assert (await tracker.get("/v1/nowhere")).error["type"] == "invalid_request_error"
    reply = await tracker.post("/v1/models", b"{}")
    assert reply.status == 405
    assert reply.error["type"] == "invalid_request_error"
