"""Whole transactions on a SQLite file, each in one go on a thread.

The asynchronous driver changes threads for every statement, which under load takes far longer than
the statement. Here what is done inside a transaction is the same coroutine as ever, but over a
connection that never lets it wait, so that a thread can run it from end to end.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

from sqlalchemy import Connection
from sqlalchemy.engine import Dialect, Engine, Result
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.store.engine import INTENT, Intent

READERS = 2
"""Threads for what only reads; more would only wait for each other."""

TURN_SECONDS = 4.0
"""Who waits longer for those before it is told that the database is away: it answers nobody."""

WORK_SECONDS = 8.0
"""Longer than any work of ours takes beside the wait for another process; a disk that needs longer
is as good as away. Such work may still come to its end, as may a commit whose answer was lost."""

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]


class InstantConnection:
    """What a transaction's work uses of an AsyncConnection, done before it returns."""

    def __init__(self, connection: Connection) -> None:
        self.sync_connection = connection

    @property
    def dialect(self) -> Dialect:
        return self.sync_connection.dialect

    async def execute(self, statement: Any, parameters: Any = None) -> Result[Any]:
        return self.sync_connection.execute(statement, parameters)


class Threads:
    """One thread that writes, and some that read; close them with `close`.

    The thread that writes is the writers' queue: whoever hands over to the next one there does not
    wait for a busy event loop.
    """

    def __init__(self, writing: Engine, reading: Engine) -> None:
        self._writing = writing
        self._passing = writing.execution_options(**{INTENT: Intent.WRITE_PASSING})
        self._reading = reading
        self._writer = ThreadPoolExecutor(1, "store-writer")
        self._readers = ThreadPoolExecutor(READERS, "store-reader")

    async def write(self, work: Work[T]) -> T:
        """Do some work in one transaction; raises TimeoutError."""
        return await self._run(self._writer, self._writing, work)

    async def write_passing(self, work: Work[T]) -> T:
        """Do some work in one transaction that a power cut may take; raises TimeoutError."""
        return await self._run(self._writer, self._passing, work)

    async def read(self, work: Work[T]) -> T:
        """Do some work that changes nothing in one transaction; raises TimeoutError."""
        return await self._run(self._readers, self._reading, work)

    async def close(self) -> None:
        """Wait for what is under way."""
        for threads in (self._writer, self._readers):
            await asyncio.to_thread(threads.shutdown)
        self._writing.dispose()
        self._reading.dispose()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Keep the thread that writes from beginning anything; raises TimeoutError."""
        loop, reached, done = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def hold() -> None:
            loop.call_soon_threadsafe(reached.set)
            done.wait()

        holding = self._writer.submit(hold)
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await reached.wait()
            yield
        finally:
            holding.cancel()
            done.set()

    async def _run(self, threads: ThreadPoolExecutor, engine: Engine, work: Work[T]) -> T:
        asked = threads.submit(_transact, engine, work)
        doing = asyncio.wrap_future(asked)
        try:
            done, _ = await asyncio.wait((doing,), timeout=TURN_SECONDS)
            if not done and asked.running():
                done, _ = await asyncio.wait((doing,), timeout=WORK_SECONDS)
            if not done:
                raise TimeoutError
            return doing.result()
        finally:
            # What has not begun never will.
            doing.cancel()


def _transact(engine: Engine, work: Work[T]) -> T:
    with engine.begin() as connection:
        instant = cast("AsyncConnection", InstantConnection(connection))
        return _run(cast("Coroutine[Any, Any, T]", work(instant)))


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as ended:
        return cast("T", ended.value)
    work.close()
    raise RuntimeError("Work of a transaction waited for something else.")
