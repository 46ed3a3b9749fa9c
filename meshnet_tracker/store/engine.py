"""Opens the database: where it is, and how a transaction begins on it.

SQLite has one writer. In WAL mode readers never wait for it; writers say so at once with
BEGIN IMMEDIATE, since a reader that turns into a writer half way can only fail.
"""

import os
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from meshnet_tracker.store.errors import DatabaseUnavailableError

BUSY_MILLISECONDS = 3_000
"""Shorter than the time that a program has to stop, since such a wait cannot be broken off."""

WRITES = "meshnet_writes"
"""The execution option that marks a transaction as one that writes."""

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


def open_engine(url: URL) -> AsyncEngine:
    """Make the engine; a SQLite file and its folder are made private to their owner first.

    Raises DatabaseUnavailableError when the file cannot be made or the driver is not installed.
    """
    if url.get_backend_name() != "sqlite":
        try:
            return create_async_engine(url, pool_pre_ping=True)
        except ModuleNotFoundError as error:
            advice = "Install it beside meshnet, or use a SQLite file."
            raise DatabaseUnavailableError(
                f"It needs the package {error.name}. {advice}"
            ) from error
    _make_private_file(url)
    engine = create_async_engine(url)
    event.listen(engine.sync_engine, "connect", _configure_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


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
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
