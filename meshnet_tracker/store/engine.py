"""Opens the database: where it is, and how a transaction begins on it.

SQLite has one writer. In WAL mode readers never wait for it; writers say so at once with
BEGIN IMMEDIATE, since a reader that turns into a writer half way can only fail. On PostgreSQL the
same rule is kept by a lock of its own: what a writer of the Mesh decides depends on more rows than
it changes. Readers see one instant on both.
"""

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from meshnet_tracker.store.errors import DatabaseUnavailableError

BUSY_MILLISECONDS = 3_000
"""Shorter than the time that a program has to stop, since such a wait cannot be broken off."""

CONNECT_SECONDS = 1.0
STATEMENT_SECONDS = 2.0
"""Longer than any statement of ours takes; a database that needs longer is as good as away."""

LOCK_SECONDS = 2.0
ABANDONED_SECONDS = 4.0
"""After that long in mid-transaction the server gives up a Tracker that froze or lost its network,
so that another one does not wait for its locks."""

LONG_ABANDONED_SECONDS = 120.0
"""The same for what takes as long as it takes: a migration also computes between statements."""

CONNECTIONS = 10
MORE_CONNECTIONS = 5
"""Beside those, as long as there is much to do; with more of them nothing went faster."""

POOL_SECONDS = 4.0
"""Who waits longer for one of them is told that the database is away."""

MESH_LOCK = 0x6D657368
"""The key of PostgreSQL's advisory lock that writers of the Mesh hold by turns."""

INTENT = "meshnet_intent"
"""The execution option that tells what a transaction is for."""


class Intent(StrEnum):
    """What a transaction is for."""

    READ = "read"
    WRITE = "write"
    """Decides about the Mesh: no other such transaction runs at the same time."""
    WRITE_ROW = "write_row"
    """Changes rows by statements that are right by themselves, whatever runs beside them."""
    WRITE_PASSING = "write_passing"
    """Writes what is said again soon, or what little is lost with: on SQLite, a power cut may take
    it. All else is on the disk before anybody hears that it is written."""


_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


def database_url(database: str) -> URL:
    """Turn a file name or a database URL into a URL with an asynchronous driver.

    Raises DatabaseUnavailableError for a URL that cannot be read or a kind that is not supported.
    """
    if "://" not in database:
        return URL.create(_DRIVERS["sqlite"], database=str(Path(database).expanduser()))
    try:
        url = make_url(database)
    except (ArgumentError, ValueError) as error:
        raise DatabaseUnavailableError("Its URL cannot be read.") from error
    driver = _DRIVERS.get(url.get_backend_name())
    if driver is None:
        kinds = "a file name, sqlite:///FILE or postgresql://HOST/NAME"
        raise DatabaseUnavailableError(f"{url.get_backend_name()} is not supported; give {kinds}.")
    return url.set(drivername=driver)


def open_engine(url: URL, statement_seconds: float | None = STATEMENT_SECONDS) -> AsyncEngine:
    """Make the engine; a SQLite file and its folder are made private to their owner first.

    Without `statement_seconds` a statement may take as long as it takes, as a migration's.
    Raises DatabaseUnavailableError when the file cannot be made or the driver is not installed.
    """
    if url.get_backend_name() == "sqlite":
        _make_private_file(url)
        engine = create_async_engine(url)
        event.listen(engine.sync_engine, "connect", _configure_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    engine = _open_postgresql(url, statement_seconds)
    event.listen(engine.sync_engine, "begin", _begin_postgresql)
    event.listen(engine.sync_engine, "invalidate", _cut_off)
    return engine


def open_for_threads(url: URL) -> Engine:
    """Make an engine for a SQLite file that is there already, for use by threads."""
    engine = create_engine(url.set(drivername="sqlite"))
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _open_postgresql(url: URL, statement_seconds: float | None) -> AsyncEngine:
    milliseconds = 0 if statement_seconds is None else round(statement_seconds * 1000)
    abandoned = LONG_ABANDONED_SECONDS if statement_seconds is None else ABANDONED_SECONDS
    settings = {
        "application_name": "meshnet-tracker",
        "statement_timeout": str(milliseconds),
        "lock_timeout": str(round(LOCK_SECONDS * 1000)),
        "idle_in_transaction_session_timeout": str(round(abandoned * 1000)),
    }
    try:
        return create_async_engine(
            url,
            pool_pre_ping=True,
            pool_size=CONNECTIONS,
            max_overflow=MORE_CONNECTIONS,
            pool_timeout=POOL_SECONDS,
            connect_args={
                "timeout": CONNECT_SECONDS,
                # The server counts too, but not while it is frozen or out of reach.
                "command_timeout": statement_seconds,
                "server_settings": settings,
            },
        )
    except ModuleNotFoundError as error:
        advice = "Install it beside meshnet, or use a SQLite file."
        raise DatabaseUnavailableError(f"It needs the package {error.name}. {advice}") from error


def _make_private_file(url: URL) -> None:
    # The database holds the key that signs Route Tickets.
    if not url.database or url.database == ":memory:":
        raise DatabaseUnavailableError("The Tracker keeps its memory in a file; name one.")
    file = Path(url.database)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise DatabaseUnavailableError(f"{file}: {error.strerror}.") from error


def _configure_sqlite(dbapi_connection: Any, _record: object) -> None:
    # None: the driver begins nothing by itself, `_begin_sqlite` does.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    intent = _intent(connection)
    if intent is Intent.READ:
        connection.exec_driver_sql("BEGIN")
        return
    durability = "NORMAL" if intent is Intent.WRITE_PASSING else "FULL"
    connection.exec_driver_sql(f"PRAGMA synchronous = {durability}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_postgresql(connection: Connection) -> None:
    if _intent(connection) is Intent.WRITE:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MESH_LOCK})")


def _cut_off(dbapi_connection: Any, _record: object, _error: object) -> None:
    # Taking leave of a server that does not answer would take seconds more.
    dbapi_connection.driver_connection.terminate()


def _intent(connection: Connection) -> Intent:
    intent: Intent = connection.get_execution_options().get(INTENT, Intent.READ)
    return intent
