import time
from pathlib import Path

import pytest

from meshnet_tracker.cli import QUANTIZATIONS as OFFERED
from meshnet_tracker.presets.figures import QUANTIZATIONS
from tests.tracker.presets.checkpoints import write_checkpoint
from tests.tracker.programs import run_command


@pytest.mark.parametrize(
    "command",
    [
        *("", "serve", "migrate", "preset", "preset add", "preset list", "preset show"),
        *("preset remove", "keys", "keys rotate", "keys list"),
    ],
)
async def test_help_answers_at_once(command: str) -> None:
    began = time.monotonic()
    ended = await run_command(*command.split(), "--help")
    assert (ended.status, time.monotonic() - began < 1) == (0, True)
    assert "Usage:" in ended.output


async def test_help_tells_every_default_and_its_variable() -> None:
    text = " ".join((await run_command("serve", "--help")).output.split())
    for told in ("default: 8080", "default: 127.0.0.1", "default: 12.0", "default: 0.2"):
        assert told in text
    assert "MESHNET_TRACKER_PORT" in text
    assert "tracker.sqlite3" in text


async def test_the_version_is_told() -> None:
    assert "meshnet-tracker" in (await run_command("--version")).output


async def test_a_usage_error_is_status_two(tmp_path: Path) -> None:
    for arguments in (
        ("serve", "--port", "99999"),
        ("serve", "--headroom-share", "1"),
        ("serve", "--heartbeat-seconds", "12"),
        ("preset", "add", str(tmp_path), "--quantization", "int3"),
        ("nothing",),
    ):
        assert (await run_command(*arguments)).status == 2


async def test_the_database_can_be_named_by_a_variable(tmp_path: Path) -> None:
    database = tmp_path / "named.sqlite3"
    ended = await run_command("migrate", MESHNET_TRACKER_DATABASE=str(database))
    assert ended.status == 0
    assert database.exists()


async def test_a_preset_is_added_listed_shown_and_removed(tmp_path: Path) -> None:
    database = ("--database", str(tmp_path / "t.sqlite3"))
    folder = write_checkpoint(tmp_path / "tiny")
    added = await run_command("preset", "add", str(folder), *database)
    assert (added.status, added.output.splitlines()[0]) == (0, "Added tiny:")
    listed = await run_command("preset", "list", *database)
    assert listed.output.startswith("tiny  3 layers  bfloat16")
    shown = await run_command("preset", "show", "tiny", *database)
    assert "nf4" in shown.output
    assert (await run_command("preset", "remove", "tiny", *database)).status == 0
    missing = await run_command("preset", "show", "tiny", *database)
    assert (missing.status, "Traceback" in missing.errors) == (3, False)


def test_the_command_offers_every_quantization_with_known_sizes() -> None:
    assert OFFERED == QUANTIZATIONS


async def test_the_key_that_signs_is_rotated_and_listed(tmp_path: Path) -> None:
    database = ("--database", str(tmp_path / "t.sqlite3"))
    rotations = [await run_command("keys", "rotate", *database) for _ in range(2)]
    assert [ended.status for ended in rotations] == [0, 0]
    listed = (await run_command("keys", "list", *database)).output.splitlines()
    assert rotations[1].output.split()[1] == listed[0].split()[0]
    assert [line.split()[5] for line in listed] == ["signs", "verifies"]
