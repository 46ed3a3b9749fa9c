import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from meshnet_tracker.cli import main
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


MAKING = {"serve", "migrate", "preset add"}
"""What may make a database where there is none."""

ARGUMENTS = {
    "preset show": ("tiny",),
    "preset remove": ("tiny",),
    "alias set": ("chat", "tiny"),
    "alias rollback": ("chat",),
    "alias remove": ("chat",),
    "pin add": ("w1", "tiny", "0", "2"),
    "pin remove": ("w1",),
    "drain add": ("w1",),
    "drain remove": ("w1",),
    "key create": ("ann",),
    "key revoke": ("ann",),
    "backup": ("copy.sqlite3",),
}


def leaves(command: click.Command, *names: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from leaves(below, *names, name)
    else:
        yield " ".join(names)


@pytest.mark.parametrize("command", sorted(set(leaves(main)) - MAKING))
def test_no_other_command_makes_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = str(tmp_path / "new" / "t.sqlite3")
    arguments = (*command.split(), *ARGUMENTS.get(command, ()), "--database", file)
    ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code == (1 if command == "doctor" else 3), ended.output
    assert file in ended.output
    assert "--database" in ended.output
    assert list(tmp_path.iterdir()) == []
