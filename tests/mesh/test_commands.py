"""The commands as a person types them: help comes at once and says what each option does."""

import re
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from demo.processes import command
from tests.repo.tree import ROOT

PROGRAMS = ("meshnet-tracker", "meshnet-worker", "meshnet-gateway")
HELP_SECONDS = 1.0
TRIES = 3


@cache
def _help(*words: str) -> tuple[str, float]:
    """The text of `--help` and a time of a few tries, as other tests may run beside it."""
    seconds = HELP_SECONDS
    text = ""
    for _ in range(TRIES):
        began = time.perf_counter()
        text = _run(*words, "--help").stdout
        seconds = time.perf_counter() - began
        if seconds < HELP_SECONDS:
            break
    return text, seconds


def _commands(*words: str) -> Iterator[tuple[str, ...]]:
    """This command and all below it, as its own help lists them."""
    yield words
    _, _, listed = _help(*words)[0].partition("Commands:\n")
    for name in re.findall(r"^  ([a-z][a-z-]*)", listed, flags=re.MULTILINE):
        yield from _commands(*words, name)


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_of_every_command_answers_within_a_second(program: str) -> None:
    seconds = {" ".join(words): _help(*words)[1] for words in _commands(program)}
    assert {words: taken for words, taken in seconds.items() if taken >= HELP_SECONDS} == {}


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_says_what_every_option_does(program: str) -> None:
    silent = [
        (" ".join(words), option)
        for words in _commands(program)
        for option, text in _options(_help(*words)[0])
        if not text
    ]
    assert silent == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_manual_names_every_option_that_starts_a_program(program: str) -> None:
    manual = (ROOT / "docs" / "running.md").read_text()
    starts = "start" if program == "meshnet-worker" else "serve"
    options = [option.rstrip(",") for option, _ in _options(_help(program, starts)[0])]
    assert [o for o in options if o not in {"--help", "-h"} and f"`{o}" not in manual] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_usage_error_is_status_2(program: str) -> None:
    ended = _run(program, "--no-such-option")
    assert (ended.returncode, "--no-such-option" in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("meshnet-worker", "start", "--vram", "plenty"),
        ("meshnet-worker", "start", "--threads", "many"),
        ("meshnet-worker", "start", "--tracker", "http://tracker.example", "--tracker", "nowhere"),
        ("meshnet-tracker", "serve", "--port", "70000"),
        ("meshnet-gateway", "serve", "--mesh", "nowhere"),
    ],
    ids=" ".join,
)
def test_a_wrong_value_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    ended = _run(*arguments)
    assert ended.returncode == 2, ended.stderr
    assert arguments[-1] in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_database_with_a_newer_schema_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "tracker.sqlite3"
    assert _run("meshnet-tracker", "migrate", "--database", str(database)).returncode == 0
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'from_the_future'")
    ended = _run("meshnet-tracker", "serve", "--port", "0", "--database", str(database))
    assert ended.returncode == 3
    assert "from_the_future" in ended.stderr
    assert "Traceback" not in ended.stderr


def _options(text: str) -> Iterator[tuple[str, str]]:
    """Each option with its text, which may begin on the next line."""
    _, _, options = text.partition("Options:\n")
    options, _, _ = options.partition("\n\n")
    for entry in re.split(r"^  (?=-)", options, flags=re.MULTILINE)[1:]:
        option, _, rest = entry.strip().partition(" ")
        _, _, described = rest.partition("  ") if "  " in rest else ("", "", rest)
        yield option, described.strip()


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (command(program), *arguments), capture_output=True, text=True, timeout=60, check=False
    )
