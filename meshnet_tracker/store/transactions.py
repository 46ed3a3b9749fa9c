"""Transactions on the database, readers' and writers', with errors that name no statement."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from meshnet_tracker.store.engine import INTENT, Intent, open_engine, open_for_threads
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.thread import TURN_SECONDS, Threads, Work

SERIALIZATION_FAILURE = "40001"
DEADLOCK_DETECTED = "40P01"
STALE_STATEMENT = "0A000"
"""A column has changed since the connection prepared its statement, as after a migration."""

MOST_TRIES = 4

ORIGIN = "meshnet_origin"
"""The execution option that tells who writes."""

NEWS_TOLD = "meshnet_news_told"
"""Under this name a connection keeps the numbers of the news told in its transaction."""

T = TypeVar("T")


@dataclass(slots=True)
class Origin:
    """Who writes: one opened database of one process."""

    name: str = field(default_factory=lambda: secrets.token_hex(8))
    told: set[int] = field(default_factory=set)
    """The numbers of the news that it has told the others; what was undone is not among them."""


class Transactions:
    """Lends connections, each for one transaction; close it with `close`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.origin = Origin()
        self._engine = engine.execution_options(**{ORIGIN: self.origin})
        consistent: dict[str, object] = {}
        current: dict[str, object] = {}
        if engine.dialect.name == "postgresql":
            consistent = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
            # Whatever the server's default is: a writer that waited for its turn must see what
            # those before it have done.
            current = {"isolation_level": "READ COMMITTED"}
        self._reading = self._engine.execution_options(**{INTENT: Intent.READ}, **consistent)
        self._writing = self._engine.execution_options(**{INTENT: Intent.WRITE}, **current)
        self._writing_rows = self._engine.execution_options(**{INTENT: Intent.WRITE_ROW}, **current)
        self._threads: Threads | None = None
        self._place = _place_of(engine.url)
        # Those of one process can simply queue, and leave the connections to others. Those on a
        # SQLite file queue for the thread that writes, which needs no event loop to go on.
        self._writers_turn = asyncio.Lock()

    def patient(self) -> "Transactions":
        """Open the same database for statements that take as long as they take."""
        return Transactions(open_engine(self._engine.url, statement_seconds=None))

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    async def close(self) -> None:
        if self._threads is not None:
            await self._threads.close()
        await self._engine.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection that reads one instant; raises DatabaseUnavailableError."""
        with _translated(self._place):
            async with self._reading.begin() as connection:
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection to who decides about the Mesh, one at a time over all Trackers.

        Raises DatabaseUnavailableError.
        """
        with _translated(self._place):
            async with self._turn(), self._writing.begin() as connection:
                told = _begin_telling(connection)
                yield connection
        self.origin.told.update(told)

    async def read_all(self, work: Work[T]) -> T:
        """Read one instant, quicker than by `read`; raises DatabaseUnavailableError.

        The work must wait for its connection only; it may be done anew.
        """
        return await self._do(work, self._try_reading)

    async def write_all(self, work: Work[T]) -> T:
        """Decide about the Mesh as with `write`, quicker; raises DatabaseUnavailableError.

        The work must wait for its connection only; it may be done anew.
        """
        return await self._do_telling(work, self._try_writing)

    async def write_rows(self, work: Work[T]) -> T:
        """Run statements that are right by themselves; on PostgreSQL they wait for nobody else.

        The work is done anew when others got into its way, so it must touch its connection only.
        Raises DatabaseUnavailableError.
        """
        return await self._do_telling(work, self._try_writing_rows)

    async def write_passing(self, work: Work[T]) -> T:
        """Decide about the Mesh as with `write_all`; on SQLite a power cut may take it."""
        return await self._do_telling(work, self._try_writing_passing)

    async def write_passing_rows(self, work: Work[T]) -> T:
        """Run statements as with `write_rows`; on SQLite a power cut may take what they did."""
        if self.is_sqlite:
            return await self.write_passing(work)
        return await self.write_rows(work)

    async def listening_connection(self) -> Any:
        """Open a connection of PostgreSQL's driver, outside the pool; whoever has it terminates it.

        Raises DatabaseUnavailableError.
        """
        with _translated(self._place):
            try:
                pooled = await self._engine.raw_connection()
            except self._engine.dialect.loaded_dbapi.Error as error:
                # Only a connection that does not come raw has its errors wrapped.
                raise DatabaseUnavailableError(f"{error}.") from error
            connection = pooled.driver_connection
            pooled.detach()
            return connection

    async def _do(self, work: Work[T], attempt: Callable[[Work[T]], Awaitable[T]]) -> T:
        with _translated(self._place):
            for _ in range(MOST_TRIES - 1):
                try:
                    return await attempt(work)
                except DBAPIError as error:
                    if not _is_worth_another_try(error):
                        raise
            return await attempt(work)

    async def _do_telling(self, work: Work[T], attempt: Callable[[Work[Any]], Awaitable[Any]]) -> T:
        async def telling(connection: AsyncConnection) -> tuple[T, list[int]]:
            told = _begin_telling(connection)
            return await work(connection), told

        result, told = await self._do(telling, attempt)
        self.origin.told.update(told)
        return cast("T", result)

    async def _try_reading(self, work: Work[T]) -> T:
        if self.is_sqlite:
            return await self._with_threads().read(work)
        async with self._reading.begin() as connection:
            return await work(connection)

    async def _try_writing(self, work: Work[T]) -> T:
        if self.is_sqlite:
            return await self._with_threads().write(work)
        async with self._turn(), self._writing.begin() as connection:
            return await work(connection)

    async def _try_writing_passing(self, work: Work[T]) -> T:
        if self.is_sqlite:
            return await self._with_threads().write_passing(work)
        return await self._try_writing(work)

    async def _try_writing_rows(self, work: Work[T]) -> T:
        if self.is_sqlite:
            return await self._try_writing(work)
        async with self._writing_rows.begin() as connection:
            return await work(connection)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait until no other writer of this process is at work; raises TimeoutError."""
        if self.is_sqlite:
            async with self._with_threads().held():
                yield
            return
        async with asyncio.timeout(TURN_SECONDS):
            await self._writers_turn.acquire()
        try:
            yield
        finally:
            self._writers_turn.release()

    def _with_threads(self) -> Threads:
        if self._threads is None:
            engine = open_for_threads(self._engine.url)
            known = {ORIGIN: self.origin}
            writing = engine.execution_options(**known, **{INTENT: Intent.WRITE})
            reading = engine.execution_options(**known, **{INTENT: Intent.READ})
            self._threads = Threads(writing, reading)
        return self._threads


def origin_of(connection: AsyncConnection) -> Origin:
    """Tell who writes in this transaction."""
    origin: Origin = connection.sync_connection.get_execution_options()[ORIGIN]  # type: ignore[union-attr]
    return origin


def note_told(connection: AsyncConnection, number: int) -> None:
    """Note that this transaction tells a piece of news, if it comes to its end."""
    connection.sync_connection.info[NEWS_TOLD].append(number)  # type: ignore[union-attr]


def _begin_telling(connection: AsyncConnection) -> list[int]:
    told: list[int] = []
    connection.sync_connection.info[NEWS_TOLD] = told  # type: ignore[union-attr]
    return told


def _is_worth_another_try(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None)
    return state in {SERIALIZATION_FAILURE, DEADLOCK_DETECTED, STALE_STATEMENT}


@contextmanager
def _translated(place: str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        # The statement and its values stay out of logs and answers.
        raise DatabaseUnavailableError(f"{place}{error.orig}.") from error
    except TimeoutError as error:
        raise DatabaseUnavailableError(f"{place}It did not answer in time.") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DatabaseUnavailableError(f"{place}{reason}.") from error
    except SQLAlchemyError as error:
        raise DatabaseUnavailableError(f"{place}{type(error).__name__}.") from error


def _place_of(url: URL) -> str:
    """Say where a database server is; of a file nothing, which its errors name themselves."""
    if url.get_backend_name() == "sqlite":
        return ""
    return f"{url.host or url.query.get('host') or 'localhost'}:{url.port or 5432}: "
