"""Opens the database for work: the same rule for the server and for every command."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from meshnet_tracker.store.store import Store

_logger = structlog.get_logger()


@asynccontextmanager
async def open_store(database: str) -> AsyncIterator[Store]:
    """Open the database with this release's schema; raises SchemaError, DatabaseUnavailableError.

    An older SQLite file is migrated, since it belongs to this machine alone. A database that
    several Trackers share is migrated by its Operator.
    """
    store = Store.open(database)
    try:
        if store.is_file:
            migrated = await store.migrate()
            if migrated is not None:
                _logger.info("database migrated", before=migrated[0], now=migrated[1])
        else:
            await store.check_schema()
        yield store
    finally:
        await store.close()
