"""Opens the database for work: the same rules for the server and for every command."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from meshnet_tracker.store.engine import database_url
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.store import Store

_logger = structlog.get_logger()


@asynccontextmanager
async def open_store(database: str) -> AsyncIterator[Store]:
    """Open a database that is there, as this release made it.

    Raises SchemaError, DatabaseUnavailableError. Nothing is made or migrated: whoever only looks
    at a Mesh, or changes one thing in it, may have named another database than its Tracker's.
    """
    store = Store.open(existing(database))
    try:
        await _check(store)
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def make_store(database: str) -> AsyncIterator[Store]:
    """Open the database; a SQLite file is made where there is none, and migrated if it is older.

    It belongs to this machine alone. A database that several Trackers share is migrated by its
    Operator. Raises SchemaError, DatabaseUnavailableError.
    """
    store = Store.open(database)
    try:
        if store.is_file:
            migrated = await store.migrate()
            if migrated is not None:
                _logger.info("database migrated", before=migrated[0], now=migrated[1])
        else:
            await _check(store)
        yield store
    finally:
        await store.close()


def existing(database: str) -> str:
    """Return what is given; raises DatabaseUnavailableError for a SQLite file that is not there."""
    url = database_url(database)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise DatabaseUnavailableError(
            f"There is no file {url.database}. Give --database as your Tracker has it; "
            "`meshnet-tracker serve`, `migrate` and `preset add` make a new one."
        )
    return database


async def _check(store: Store) -> None:
    try:
        await store.check_schema()
    except DatabaseUnavailableError as error:
        if store.is_file:
            raise
        advice = "Start it, or check the address, name, user and password in --database."
        raise DatabaseUnavailableError(f"{error.detail} {advice}") from error
