"""docs/operations.md is true: its commands do what it says, and no request is lost meanwhile."""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from tests.mesh.harness import get
from tests.mesh.runbook import Block, Client, Runbook, blocks
from tests.postgres import PostgresServer
from tests.repo.tree import ROOT

MARKS = {
    "runbook-setup",
    "runbook",
    "runbook-offline",
    "runbook-offline older-schema",
    "runbook-postgres",
    "runbook-postgres-clients",
}
OLDER_REVISION = "0004"
PROGRAMS = ("curl", "jq", "openssl")
"""What the document's commands use beside our own; `.ci/run` installs them."""

needs_programs = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)), reason=f"the runbook's commands use {PROGRAMS}"
)


def test_every_mark_of_the_document_is_known_and_used() -> None:
    assert {block.mark for block in blocks()} == MARKS


def with_mark(*marks: str) -> list[Block]:
    return [block for block in blocks() if block.mark in marks]


@pytest.fixture
def runbook(tmp_path: Path, random_llama: Path, random_gpt2: Path) -> Iterator[Runbook]:
    database = tmp_path / "tracker.sqlite3"
    places = {
        "/var/lib/meshnet/tracker.sqlite3": str(database),
        "/models/v1": str(random_llama),
        "/models/v2": str(random_gpt2),
    }
    running = Runbook(tmp_path, places)
    yield running
    running.stop()


@needs_programs
def test_one_tracker_is_operated_as_the_document_says(runbook: Runbook, tmp_path: Path) -> None:
    (setup,) = with_mark("runbook-setup")
    client = Client([runbook.url("8080")], "chat")
    first, second, *others = with_mark("runbook", "runbook-offline", "runbook-offline older-schema")
    for block in (first, second):
        runbook.run(setup.text + block.text)
    client.ask()
    (old,) = set(client.answers)
    answered: dict[str, set[str]] = {}
    for block in others:
        seen = len(client.answers)
        if block.mark == "runbook":
            with client.asking():
                runbook.run(setup.text + block.text)
        else:
            if block.mark.endswith("older-schema"):
                stop_tracker(runbook, setup)
                make_older(tmp_path / "tracker.sqlite3")
                # That release had no aliases.
                client.model = "chat-v1"
            runbook.run(setup.text + block.text)
            client.ask()
        answered.setdefault(block.heading, set()).update(client.answers[seen:])
    assert client.failures == []
    assert answered["Canary"] == {old}
    (new,) = answered["Cut-over"] - {old}
    assert answered["Rollback"] == {old, new}
    assert [
        heading
        for heading in ("Drain a Worker", "Restore", "A new release on a running Mesh")
        if answered[heading] != {old}
    ] == []
    assert "directive issued" in (tmp_path / "tracker.log").read_text()


@needs_programs
def test_trackers_on_postgresql_are_restarted_one_by_one(runbook: Runbook) -> None:
    with PostgresServer() as server:
        url = server.url(asyncio.run(server.new_database()))
        database = "postgresql+asyncpg://meshnet@db.example/mesh"
        (start,) = with_mark("runbook-postgres")
        (restart,) = with_mark("runbook-postgres-clients")
        export = f"export MESHNET_TRACKER_DATABASE={url}\n"
        runbook.run(start.text.replace(database, url))
        client = Client([runbook.url("8080"), runbook.url("8081")], "chat")
        with client.asking():
            runbook.run(export + restart.text)
        assert (client.failures, len(set(client.answers))) == ([], 1)
        assert get(f"{runbook.url('8081')}/readyz").status == 200
        runbook.stop()


def stop_tracker(runbook: Runbook, setup: Block) -> None:
    """Do what stands in the section on restoring: its first two commands."""
    (restore,) = with_mark("runbook-offline")
    runbook.run(setup.text + "".join(restore.text.splitlines(keepends=True)[:2]))


def make_older(database: Path) -> None:
    """Make it a database of an older release, with all that this one knew."""
    engine = create_engine(f"sqlite:///{database}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(ROOT / "migrations"))
        config.attributes["connection"] = connection
        command.downgrade(config, OLDER_REVISION)
    engine.dispose()
    with closing(sqlite3.connect(database)) as connection_now:
        (revision,) = connection_now.execute("SELECT version_num FROM alembic_version").fetchone()
    assert revision == OLDER_REVISION
