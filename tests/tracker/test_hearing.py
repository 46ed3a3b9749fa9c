import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshnet_common.edge.clock import ManualClock
from meshnet_tracker.app import make_services
from meshnet_tracker.bells import Bell
from meshnet_tracker.hearing import Hearing
from meshnet_tracker.services import Services
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, load, preset
from tests.tracker.databases import KINDS, empty_postgres
from tests.tracker.running import until
from tests.tracker.store.meshes import issue, join


@pytest.fixture(params=KINDS)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "postgresql":
        async with empty_postgres() as url:
            yield url
    else:
        yield str(tmp_path / "tracker.sqlite3")


@pytest.fixture
async def services(database: str) -> AsyncIterator[Services]:
    store = Store.open(database)
    if store.is_file:
        await store.migrate()
    yield await make_services(store, TrackerSettings(), ManualClock(NOW))
    await store.close()


@pytest.fixture
async def other(services: Services, database: str) -> AsyncIterator[Store]:
    del services
    opened = Store.open(database)
    yield opened
    await opened.close()


async def test_what_another_process_changes_is_noticed_and_ones_own_changes_are_not(
    services: Services, other: Store
) -> None:
    hearing = Hearing(services)
    await hearing.catch_up()
    await services.store.add_preset(preset("own"), NOW)
    await hearing.catch_up()
    assert not services.rebalance.is_rung
    await other.add_preset(preset("other"), NOW)
    await hearing.catch_up()
    assert services.rebalance.is_rung


async def test_directives_issued_by_another_tracker_wake_the_poll(
    services: Services, other: Store
) -> None:
    hearing = Hearing(services)
    worker_id = await join(services.store, "w1")
    await hearing.catch_up()
    with services.directives.listen(worker_id) as bell:
        await issue(other, load("w1", 0, 6))
        await hearing.catch_up()
        assert bell.is_rung


async def test_a_request_that_waits_for_layers_hears_of_another_trackers_news(
    services: Services, other: Store
) -> None:
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        hearing = Hearing(services)
        running = tasks.create_task(hearing.run())
        await until(lambda: hearing._epoch is not None)
        heard = Bell()

        async def wait() -> None:
            await services.changes.wait(20)
            heard.ring()

        waiting = tasks.create_task(wait())
        await asyncio.sleep(0)
        await other.add_preset(preset("other"), NOW)
        await heard.wait(20)
        await waiting
        running.cancel()


async def test_a_lost_listening_connection_is_opened_again(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshnet_tracker.hearing.LOOK_SECONDS", 0.01)
    times: list[int] = []

    async def listen_once(ring: object) -> None:
        del ring
        times.append(len(times))

    monkeypatch.setattr(services.store.news, "listen", listen_once)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(Hearing(services).run())
        await until(lambda: len(times) >= 3)
        running.cancel()
