import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest
from sqlalchemy import text

from meshnet_tracker.store.engine import (
    ABANDONED_SECONDS,
    INTENT,
    LONG_ABANDONED_SECONDS,
    STATEMENT_SECONDS,
    Intent,
    database_url,
    open_engine,
)
from meshnet_tracker.store.errors import DatabaseUnavailableError
from tests.tracker.databases import empty_postgres


def test_a_bare_file_name_is_a_sqlite_file() -> None:
    assert str(database_url("some/tracker.sqlite3")) == "sqlite+aiosqlite:///some/tracker.sqlite3"


def test_a_url_gets_the_asynchronous_driver_of_its_kind() -> None:
    assert database_url("postgresql://host/mesh").drivername == "postgresql+asyncpg"
    assert database_url("sqlite:////data/x.sqlite3").drivername == "sqlite+aiosqlite"


@pytest.mark.parametrize("database", ["mysql://host/mesh", "://", "sqlite://"])
def test_an_unusable_url_is_refused_with_a_reason(database: str) -> None:
    with pytest.raises(DatabaseUnavailableError):
        open_engine(database_url(database))


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailableError, match="directory"):
        open_engine(database_url(str(tmp_path)))


async def test_the_file_is_private_to_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "data" / "tracker.sqlite3"
    await open_engine(database_url(str(file))).dispose()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_connections_use_wal_and_foreign_keys(tmp_path: Path) -> None:
    engine = open_engine(database_url(str(tmp_path / "t.sqlite3")))
    async with engine.begin() as connection:
        mode = (await connection.execute(text("PRAGMA journal_mode"))).scalar_one()
        keys = (await connection.execute(text("PRAGMA foreign_keys"))).scalar_one()
    await engine.dispose()
    assert (mode, keys) == ("wal", 1)


async def test_a_writer_takes_the_lock_when_it_begins(tmp_path: Path) -> None:
    file = tmp_path / "t.sqlite3"
    engine = open_engine(database_url(str(file)))
    other = sqlite3.connect(file, timeout=0, isolation_level=None)
    async with engine.execution_options(**{INTENT: Intent.WRITE}).begin():
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
    async with engine.begin():
        other.execute("BEGIN IMMEDIATE")
    other.close()
    await engine.dispose()


async def test_a_writer_waits_for_another_process(tmp_path: Path) -> None:
    file = tmp_path / "t.sqlite3"
    engine = open_engine(database_url(str(file)))
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    async def write() -> None:
        async with engine.execution_options(**{INTENT: Intent.WRITE}).begin() as connection:
            await connection.execute(text("CREATE TABLE waited (x)"))

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        writer = tasks.create_task(write())
        await asyncio.sleep(0)
        assert not writer.done()
        other.execute("COMMIT")
    other.close()
    await engine.dispose()


async def test_a_migration_may_compute_for_longer_between_its_statements_than_a_request() -> None:
    async with empty_postgres() as url:
        idle = [await idle_seconds(url, seconds) for seconds in (None, STATEMENT_SECONDS)]
    assert idle == [LONG_ABANDONED_SECONDS, ABANDONED_SECONDS]


async def idle_seconds(url: str, statement_seconds: float | None) -> float:
    """How long the server bears a transaction that does nothing."""
    engine = open_engine(database_url(url), statement_seconds)
    setting = "EXTRACT(EPOCH FROM current_setting('idle_in_transaction_session_timeout')::interval)"
    async with engine.connect() as connection:
        found = (await connection.execute(text(f"SELECT {setting}"))).scalar_one()
    await engine.dispose()
    return float(found)
