"""A PostgreSQL that is stopped, frozen or cut off in the middle: an error in time, and no harm."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.edge.clock import loop_time
from meshnet_tracker.bells import Bell
from meshnet_tracker.store.engine import ABANDONED_SECONDS, CONNECT_SECONDS, STATEMENT_SECONDS
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.store import Store
from meshnet_tracker.store.thread import TURN_SECONDS
from tests.postgres import PostgresServer
from tests.tracker.builders import NOW, preset, registration
from tests.tracker.store.meshes import register

MOST_SECONDS = CONNECT_SECONDS + STATEMENT_SECONDS + 1.0
MANY = 8


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as started:
        yield started


@pytest.fixture
async def url(server: PostgresServer) -> str:
    url = server.url(await server.new_database())
    store = Store.open(url)
    await store.migrate()
    await store.close()
    return url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    opened = Store.open(url)
    yield opened
    await opened.close()


async def refused(call: Awaitable[object]) -> float:
    """Wait for the refusal and tell how long it took."""
    began = loop_time()
    with pytest.raises(DatabaseUnavailableError) as caught:
        await call
    assert "SELECT" not in str(caught.value)
    return loop_time() - began


async def test_a_stopped_server_is_told_at_once_and_its_return_needs_nothing(
    server: PostgresServer, store: Store
) -> None:
    await store.add_preset(preset(), NOW)
    number = await store.next_admission_seq()
    server.stop()
    try:
        assert await refused(store.presets()) < 1.0
        assert await refused(store.next_admission_seq()) < 1.0
    finally:
        server.start()
    assert await store.presets() == (preset(),)
    assert await store.next_admission_seq() == number + 1


async def test_a_restart_between_two_requests_is_not_noticed(
    server: PostgresServer, store: Store
) -> None:
    await store.ping()
    server.stop()
    server.start()
    await store.ping()
    assert await store.next_admission_seq() == 1


async def test_a_frozen_server_holds_nobody_up_for_long(
    server: PostgresServer, store: Store
) -> None:
    await store.ping()
    server.freeze()
    try:
        assert await refused(store.ping()) < MOST_SECONDS
        assert await refused(store.next_admission_seq()) < MOST_SECONDS
    finally:
        server.thaw()
    assert await store.next_admission_seq() == 1


async def test_of_many_who_want_to_write_to_a_frozen_server_nobody_waits_for_all_the_others(
    server: PostgresServer, store: Store
) -> None:
    await store.ping()
    ways: list[Callable[[], Awaitable[object]]] = [
        lambda: store.add_preset(preset(), NOW),
        lambda: register(store, registration()),
        store.next_admission_seq,
    ]
    server.freeze()
    try:
        async with asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(refused(way())) for way in ways * MANY]
        assert max(wait.result() for wait in waits) < TURN_SECONDS + MOST_SECONDS
    finally:
        server.thaw()
    await store.add_preset(preset(), NOW)
    await register(store, registration())


async def test_a_transaction_whose_connection_is_lost_leaves_nothing(
    server: PostgresServer, store: Store
) -> None:
    await store.ping()

    async def add_half() -> None:
        async with store._transactions.write() as connection:
            await connection.execute(text("UPDATE counters SET value = 77"))
            server.stop()
            await connection.execute(text("SELECT 1"))

    try:
        assert await refused(add_half()) < 1.0
    finally:
        server.start()
    assert await store.next_admission_seq() == 1


async def test_a_tracker_that_freezes_in_mid_transaction_holds_nobody_up_for_good(
    store: Store, url: str
) -> None:
    frozen = Store.open(url)
    async with asyncio.timeout(ABANDONED_SECONDS + 10):
        with suppress(DatabaseUnavailableError):
            async with frozen._transactions.write() as connection:
                await connection.execute(text("UPDATE counters SET value = 77"))
                while True:
                    # Whoever waits gives up sooner than the server gives up the frozen one.
                    with suppress(DatabaseUnavailableError):
                        await store.add_preset(preset(), NOW)
                        break
                await connection.execute(text("SELECT 1"))
                pytest.fail("the server did not give it up")
    await frozen.close()
    assert await store.next_admission_seq() == 1


async def test_rows_that_two_change_in_opposite_order_are_tried_again(
    store: Store, url: str
) -> None:
    other = Store.open(url)
    first_done, second_done = asyncio.Event(), asyncio.Event()
    tries: list[str] = []

    async def change(one: str, then: str, own: asyncio.Event, others: asyncio.Event) -> None:
        async def work(connection: AsyncConnection) -> None:
            tries.append(one)
            statement = text("UPDATE counters SET value = value + 1 WHERE name = :name")
            await connection.execute(statement, {"name": one})
            own.set()
            await others.wait()
            await connection.execute(statement, {"name": then})

        await (store if own is first_done else other)._transactions.write_rows(work)

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        one, then = "admission_seq", "preset_version"
        tasks.create_task(change(one, then, first_done, second_done))
        tasks.create_task(change(then, one, second_done, first_done))
    await other.close()
    assert len(tries) == 3
    assert await store.next_admission_seq() == 3


async def test_what_was_told_while_nobody_could_listen_is_heard_afterwards(
    server: PostgresServer, store: Store, url: str
) -> None:
    other, bell = Store.open(url), Bell()
    before = await store.news.of_others()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:

        async def listen() -> None:
            with pytest.raises(DatabaseUnavailableError):
                await store.news.listen(bell.ring)

        tasks.create_task(listen())
        await bell.wait(10)
        server.stop()
    server.start()
    await other.add_preset(preset(), NOW)
    await other.close()
    assert await store.news.of_others() == before + 1
