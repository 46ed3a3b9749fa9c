"""The database's clock, by which all Trackers judge what is late: theirs may differ."""

from typing import Any

from sqlalchemy import Double, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from meshnet_tracker.store.transactions import Transactions


class database_now(FunctionElement[float]):  # noqa: N801 - it reads like a function of SQL
    """Seconds since the epoch at the moment in which the statement runs."""

    type: TypeEngine[float] = Double()
    inherit_cache: bool | None = True


@compiles(database_now, "sqlite")
def _sqlite_now(_element: object, _compiler: object, **_: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now, "postgresql")
def _postgresql_now(_element: object, _compiler: object, **_: Any) -> str:
    # Not now(), which stands still from the beginning of a transaction.
    return "(extract(epoch from clock_timestamp())::double precision)"


async def read(connection: AsyncConnection) -> float:
    """Return the database's time."""
    now: float = (await connection.execute(select(database_now()))).scalar_one()
    return now


class DatabaseTime:
    """Tells the database's time."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def now(self) -> float:
        """Return seconds since the epoch; raises DatabaseUnavailableError."""
        async with self._transactions.read() as connection:
            return await read(connection)
