"""News between Trackers: that something has changed which another one should look at.

What is told is a number that grows; what has changed, whoever hears of it reads for itself. On
PostgreSQL a NOTIFY in the same transaction wakes the others when it commits. On SQLite, and after a
lost connection, the number is what shows at the next look.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.store import counters
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.transactions import Transactions, note_told, origin_of

CHANNEL = "meshnet_news"
ALIVE_SECONDS = 2.0
"""How often the listening connection is asked whether it still lives."""


async def tell(connection: AsyncConnection) -> None:
    """Tell all other Trackers, once this transaction commits; call it in one that changes much."""
    note_told(connection, await counters.advance(connection, Counter.NEWS))
    if connection.dialect.name == "postgresql":
        notify = text("SELECT pg_notify(:channel, :name)")
        name = origin_of(connection).name
        await connection.execute(notify, {"channel": CHANNEL, "name": name})


class News:
    """Hears what other Trackers and commands tell."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._newest: int | None = None
        self._of_others = 0

    async def of_others(self) -> int:
        """Return a number that grows when others have told news since it was last asked for.

        It may grow without any: when news of our own have only just been told. Of others' it never
        misses one, since each piece has a number of its own, and what is undone is nobody's.
        """
        newest = await self._transactions.read_all(
            lambda connection: counters.read(connection, Counter.NEWS)
        )
        own = self._transactions.origin.told
        if self._newest is not None:
            between = newest - self._newest
            told = sum(self._newest < number <= newest for number in own)
            # Below zero: the database was set back, and everything may be other than it was.
            self._of_others += between - told if between >= 0 else 1
        own.difference_update([number for number in own if number <= newest])
        self._newest = newest
        return self._of_others

    async def listen(self, ring: Callable[[], None]) -> None:
        """Ring whenever others tell news, and once at the beginning, until the connection is lost.

        On SQLite nobody tells: it returns at once. Raises DatabaseUnavailableError.
        """
        if self._transactions.is_sqlite:
            return
        lost = asyncio.Event()
        own = self._transactions.origin.name

        def hear(_connection: object, _pid: int, _channel: str, name: object) -> None:
            if name != own:
                ring()

        connection = await self._transactions.listening_connection()
        try:
            connection.add_termination_listener(lambda _connection: lost.set())
            await connection.add_listener(CHANNEL, hear)
            ring()
            while not lost.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(ALIVE_SECONDS):
                        await lost.wait()
                await connection.execute("SELECT 1")
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise DatabaseUnavailableError(f"{type(error).__name__}.") from error
        finally:
            connection.terminate()
