"""Databases for tests: a SQLite file, or one on a PostgreSQL server that this process starts once.

On PostgreSQL a database serves one test after the other and is emptied between them, which takes
milliseconds; making one takes much longer.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from meshnet_tracker.store.schema import counters, metadata
from meshnet_tracker.store.store import Store
from tests.postgres import PostgresServer

KINDS = ("sqlite", "postgresql")

_free: list[str] = []


@cache
def postgres_server() -> PostgresServer:
    """The server that the tests of this process share; it ends with the process."""
    server = PostgresServer()
    server.start()
    return server


@asynccontextmanager
async def empty_postgres() -> AsyncIterator[str]:
    """Lend the URL of a database with this release's tables and nothing in them."""
    server = postgres_server()
    if _free:
        name = _free.pop()
        await server.execute(_emptying(), name)
    else:
        name = await server.new_database()
        store = Store.open(server.url(name))
        await store.migrate()
        await store.close()
    yield server.url(name)
    # Not after a failure, which may have left it in any state.
    _free.append(name)


@asynccontextmanager
async def bare_postgres() -> AsyncIterator[str]:
    """Lend the URL of a database without tables."""
    server = postgres_server()
    name = await server.new_database()
    try:
        yield server.url(name)
    finally:
        await server.drop_database(name)


def _emptying() -> str:
    tables = [table.name for table in reversed(metadata.sorted_tables) if table is not counters]
    deletions = "; ".join(f"DELETE FROM {name}" for name in tables)
    return f"{deletions}; UPDATE counters SET value = 0"
