"""Transactions on the database, readers' and writers', with errors that name no statement."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from meshnet_tracker.store.engine import WRITES
from meshnet_tracker.store.errors import DatabaseUnavailableError


class Transactions:
    """Lends connections, each for one transaction; close it with `close`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._reading = engine
        self._writing = engine.execution_options(**{WRITES: True})
        # SQLite's writers poll for their turn; in one process they can simply queue.
        self._writers_turn = asyncio.Lock()

    @property
    def is_sqlite(self) -> bool:
        return self._reading.dialect.name == "sqlite"

    async def close(self) -> None:
        await self._reading.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection for reading; raises DatabaseUnavailableError."""
        with _translated():
            async with self._reading.begin() as connection:
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection that may write; raises DatabaseUnavailableError."""
        with _translated():
            async with self._writers_turn, self._writing.begin() as connection:
                yield connection


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        # The statement and its values stay out of logs and answers.
        raise DatabaseUnavailableError(f"{error.orig}.") from error
    except (SQLAlchemyError, OSError) as error:
        raise DatabaseUnavailableError(f"{type(error).__name__}.") from error
