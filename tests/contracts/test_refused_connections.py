"""A PostgreSQL that takes no connection right now looks the same whichever way it is asked."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.store.engine import database_url, open_engine
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.news import News
from meshnet_tracker.store.transactions import Transactions
from tests.tracker.databases import bare_postgres, postgres_server

STARTING_UP = b"SFATAL\0C57P03\0Mthe database system is starting up\0\0"
"""The fields of an ErrorResponse (PostgreSQL's documentation, "Message Formats")."""


async def _look(connection: AsyncConnection) -> None:
    await connection.execute(text("SELECT 1"))


async def _read(transactions: Transactions) -> None:
    async with transactions.read() as connection:
        await _look(connection)


async def _write(transactions: Transactions) -> None:
    async with transactions.write() as connection:
        await _look(connection)


async def _listen(transactions: Transactions) -> None:
    await News(transactions).listen(lambda: None)


WAYS: dict[str, Callable[[Transactions], Awaitable[None]]] = {
    "read": _read,
    "write": _write,
    "read_all": lambda transactions: transactions.read_all(_look),
    "write_all": lambda transactions: transactions.write_all(_look),
    "write_rows": lambda transactions: transactions.write_rows(_look),
    "listen": _listen,
}


@asynccontextmanager
async def _absent() -> AsyncIterator[str]:
    yield postgres_server().url("nobody_made_it")


@asynccontextmanager
async def _closed_to_all() -> AsyncIterator[str]:
    async with bare_postgres() as url:
        name = url.rsplit("/", 1)[1]
        await postgres_server().execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        yield url


@asynccontextmanager
async def _starting_up() -> AsyncIterator[str]:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)  # May it be TLS?
        writer.write(b"N")
        length = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(length - 4)
        writer.write(b"E" + (len(STARTING_UP) + 4).to_bytes(4, "big") + STARTING_UP)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"postgresql+asyncpg://meshnet@127.0.0.1:{port}/mesh"


REFUSALS = {"absent": _absent, "closed to all": _closed_to_all, "starting up": _starting_up}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_database_that_takes_no_connection_is_unavailable(way: str, refusal: str) -> None:
    async with REFUSALS[refusal]() as url:
        transactions = Transactions(open_engine(database_url(url)))
        try:
            with pytest.raises(DatabaseUnavailableError):
                await WAYS[way](transactions)
        finally:
            await transactions.close()
