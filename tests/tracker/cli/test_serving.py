from tests.tracker.programs import run_command


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
        ("nothing",),
    ):
        assert (await run_command(*arguments)).status == 2
