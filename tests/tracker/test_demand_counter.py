import asyncio
from collections import Counter

import pytest

from meshnet_common.edge.clock import ManualClock
from meshnet_tracker import demand_counter
from meshnet_tracker.demand_counter import DemandCounter
from meshnet_tracker.planning.snapshot import VariantKey
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import MODEL, NOW


@pytest.fixture
def counter(store: Store) -> DemandCounter:
    return DemandCounter(store, ManualClock(NOW))


async def test_what_was_counted_is_added_once(store: Store, counter: DemandCounter) -> None:
    for _ in range(1000):
        counter.count(MODEL)
    await counter.flush()
    await counter.flush()
    (demand,) = await store.demand.at(NOW)
    assert demand.variant == MODEL
    assert demand.requests_per_second == pytest.approx(5.8, rel=0.05)


async def test_what_could_not_be_added_is_kept(
    store: Store, counter: DemandCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_away(*_: object) -> None:
        raise DatabaseUnavailableError

    counter.count(MODEL)
    with monkeypatch.context() as patch:
        patch.setattr(store.demand, "add", is_away)
        with pytest.raises(DatabaseUnavailableError):
            await counter.flush()
    assert await store.demand.at(NOW) == ()
    counter.count(MODEL)
    await counter.flush()
    (demand,) = await store.demand.at(NOW)
    assert demand.requests_per_second == pytest.approx(2 * 0.0058, rel=0.05)


async def test_it_flushes_by_itself(
    store: Store, counter: DemandCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = asyncio.Event()
    add = store.demand.add

    async def adding(counted: Counter[VariantKey], now: float) -> None:
        await add(counted, now)
        added.set()

    monkeypatch.setattr(demand_counter, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(store.demand, "add", adding)
    counter.count(MODEL)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(counter.run())
        await added.wait()
        running.cancel()
    assert await store.demand.at(NOW)
