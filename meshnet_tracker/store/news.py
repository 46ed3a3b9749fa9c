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
from meshnet_tracker.store.transactions import Transactions, origin_of

CHANNEL = "meshnet_news"
ALIVE_SECONDS = 2.0
"""How often the listening connection is asked whether it still lives."""


async def tell(connection: AsyncConnection) -> None:
    """Tell all other Trackers, once this transaction commits; call it in one that changes much."""
    origin = origin_of(connection)
    origin.told += 1
    await counters.advance(connection, Counter.NEWS)
    if connection.dialect.name == "postgresql":
        notify = text("SELECT pg_notify(:channel, :name)")
        await connection.execute(notify, {"channel": CHANNEL, "name": origin.name})


class News:
    """Hears what other Trackers and commands tell."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def of_others(self) -> int:
        """Return a number that differs from the last one when others have told news.

        It may differ without any: when a transaction of our own is not finished, or was undone.
        """
        told = await self._transactions.read_all(
            lambda connection: counters.read(connection, Counter.NEWS)
        )
        return told - self._transactions.origin.told

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
