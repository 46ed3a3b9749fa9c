import time
from pathlib import Path

import pytest

from tests.tracker.programs import run_command


@pytest.mark.parametrize(
    "command",
    [
        *("", "serve", "migrate", "preset", "preset add", "preset list", "preset show"),
        *("preset remove", "keys", "keys rotate", "keys list", "workers", "coverage", "doctor"),
        "plan",
        *("backup", "alias", "alias set", "alias rollback", "alias remove", "alias list", "pin"),
        *("pin add", "pin remove", "pin list", "drain", "drain add", "drain remove", "drain list"),
    ],
)
async def test_help_answers_at_once(command: str) -> None:
    began = time.monotonic()
    ended = await run_command(*command.split(), "--help")
    assert (ended.status, time.monotonic() - began < 1) == (0, True)
    assert "Usage:" in ended.output


async def test_the_version_is_told() -> None:
    assert "meshnet-tracker" in (await run_command("--version")).output


@pytest.mark.parametrize("name", ["MESHNET_TRACKER_DATABASE", "MESHNET_TRACKER_DATABASE_URL"])
async def test_the_database_can_be_named_by_a_variable(tmp_path: Path, name: str) -> None:
    database = tmp_path / "named.sqlite3"
    ended = await run_command("migrate", **{name: str(database)})
    assert ended.status == 0
    assert database.exists()


async def test_the_database_has_two_names(tmp_path: Path) -> None:
    database = tmp_path / "named.sqlite3"
    ended = await run_command("migrate", "--database-url", f"sqlite:///{database}")
    assert ended.status == 0
    assert database.exists()
