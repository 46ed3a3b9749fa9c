import json
from pathlib import Path

import pytest

from tests.tracker.programs import run_command, tracker_process


async def test_help_tells_every_default_and_its_variable() -> None:
    text = " ".join((await run_command("serve", "--help")).output.split())
    for told in ("default: 8080", "default: 127.0.0.1", "default: 12.0", "default: 0.2"):
        assert told in text
    assert "MESHNET_TRACKER_PORT" in text
    assert "tracker.sqlite3" in text


async def test_a_usage_error_is_status_two() -> None:
    for arguments in (
        ("serve", "--port", "99999"),
        ("serve", "--headroom-share", "1"),
        ("serve", "--heartbeat-seconds", "12"),
        ("serve", "--hold-seconds", "nan"),
        ("nothing",),
    ):
        assert (await run_command(*arguments)).status == 2


@pytest.mark.parametrize("option", ["--admin-token-file", "--metrics-token-file"])
@pytest.mark.parametrize("token", ["", "short"])
async def test_a_weak_token_is_a_usage_error(tmp_path: Path, token: str, option: str) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    ended = await run_command("serve", option, str(file))
    assert (ended.status, "at least 16 characters" in ended.errors) == (2, True)


@pytest.mark.parametrize("token", [b"\xff\xfe" * 20, None], ids=["binary", "a folder"])
async def test_an_admin_token_that_cannot_be_read_is_a_usage_error(
    tmp_path: Path, token: bytes | None
) -> None:
    file = tmp_path / "token"
    if token is None:
        file.mkdir()
    else:
        file.write_bytes(token)
    ended = await run_command("serve", "--admin-token-file", str(file))
    assert (ended.status, str(file) in ended.errors) == (2, True)
    assert "Traceback" not in ended.errors


async def test_logs_can_be_json_and_hold_no_admin_token(tmp_path: Path) -> None:
    token = "an admin token of some length"
    (tmp_path / "token").write_text(f"{token}\n")
    options = ("--log-format", "json", "--admin-token-file", str(tmp_path / "token"))
    async with tracker_process(tmp_path, *options) as tracker:
        assert await tracker.stop() == 0
        events = [json.loads(line) for line in tracker.log.read_text().splitlines()]
        assert "tracker listening" in [event["event"] for event in events]
        assert token not in tracker.log.read_text()
