import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.bells import Bell
from meshnet_tracker.store import news
from meshnet_tracker.store.errors import AliasError, DatabaseUnavailableError
from meshnet_tracker.store.schema import counters
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW
from tests.tracker.databases import empty_postgres, postgres_server


@pytest.fixture
async def other(database: str) -> AsyncIterator[Store]:
    """A second Tracker's view of the same database."""
    opened = Store.open(database)
    yield opened
    await opened.close()


@pytest.fixture
async def on_postgresql() -> AsyncIterator[tuple[Store, Store]]:
    async with empty_postgres() as url:
        stores = Store.open(url), Store.open(url)
        yield stores
        for store in stores:
            await store.close()


async def tell(store: Store) -> None:
    async with store._transactions.write() as connection:
        await news.tell(connection)


async def test_news_of_others_show_at_a_look_and_ones_own_do_not(
    store: Store, other: Store
) -> None:
    before = await store.news.of_others()
    await tell(store)
    assert await store.news.of_others() == before
    await tell(other)
    assert await store.news.of_others() == before + 1


async def test_what_was_undone_is_no_news_to_others(store: Store, other: Store) -> None:
    before = await other.news.of_others()
    with suppress(ZeroDivisionError):
        async with store._transactions.write() as connection:
            await news.tell(connection)
            raise ZeroDivisionError
    assert await other.news.of_others() == before


async def undo(store: Store) -> None:
    with suppress(ZeroDivisionError):
        async with store._transactions.write() as connection:
            await news.tell(connection)
            raise ZeroDivisionError


async def undo_work(store: Store) -> None:
    async def work(connection: AsyncConnection) -> None:
        await news.tell(connection)
        raise ZeroDivisionError

    with suppress(ZeroDivisionError):
        await store._transactions.write_all(work)


async def refuse_an_operator(store: Store) -> None:
    with pytest.raises(AliasError):
        await store.aliases.set("chat", "no-model", NOW)


@pytest.mark.parametrize("undone", [undo, undo_work, refuse_an_operator])
async def test_news_of_ones_own_that_were_undone_hide_nobody_elses(
    store: Store, other: Store, undone: Callable[[Store], Awaitable[None]]
) -> None:
    before = await store.news.of_others()
    await undone(store)
    await tell(other)
    assert await store.news.of_others() != before


async def test_a_look_while_ones_own_news_are_told_hides_nobody_elses(
    store: Store, other: Store
) -> None:
    await store.news.of_others()
    async with store._transactions.write() as connection:
        await news.tell(connection)
        before = await store.news.of_others()
    between = await store.news.of_others()
    await tell(other)
    after = await store.news.of_others()
    assert before == between != after


async def test_a_database_that_was_set_back_is_news(store: Store) -> None:
    await tell(store)
    before = await store.news.of_others()
    async with store._transactions.write() as connection:
        await connection.execute(update(counters).values(value=0))
    assert await store.news.of_others() != before


async def test_on_sqlite_there_is_nothing_to_listen_to(store: Store) -> None:
    if store.is_file:
        await store.news.listen(lambda: None)


async def test_postgresql_rings_when_others_commit(on_postgresql: tuple[Store, Store]) -> None:
    store, other = on_postgresql
    bell = Bell()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(store.news.listen(bell.ring))
        await bell.wait(10)
        await tell(store)
        await tell(other)
        await bell.wait(10)
        # One's own came first and did not ring, so there is one ring only.
        assert not bell.is_rung
        listening.cancel()


async def test_a_listening_connection_that_is_lost_is_reported(
    on_postgresql: tuple[Store, Store],
) -> None:
    store, _ = on_postgresql
    bell = Bell()

    async def listen() -> None:
        with pytest.raises(DatabaseUnavailableError):
            await store.news.listen(bell.ring)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(listen())
        await bell.wait(10)
        ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        await postgres_server().execute(ending)
