import pytest

from meshnet_tracker.planning.snapshot import Demand, VariantKey
from meshnet_tracker.store.demand import HALF_LIFE_SECONDS
from meshnet_tracker.store.store import Store
from tests.tracker.builders import MODEL, NOW

OTHER = VariantKey("other", "nf4")


async def test_a_steady_stream_is_told_as_requests_per_second(store: Store) -> None:
    for seconds in range(0, 1200, 5):
        await store.demand.add({MODEL: 15}, NOW + seconds)
    (demand,) = await store.demand.at(NOW + 1200)
    assert demand.variant == MODEL
    assert demand.requests_per_second == pytest.approx(3.0, rel=0.05)


async def test_demand_halves_when_nobody_asks_any_more(store: Store) -> None:
    await store.demand.add({MODEL: 1000}, NOW)
    (before,) = await store.demand.at(NOW)
    (after,) = await store.demand.at(NOW + HALF_LIFE_SECONDS)
    assert after.requests_per_second == pytest.approx(before.requests_per_second / 2, rel=0.05)
    assert await store.demand.at(NOW + 100 * HALF_LIFE_SECONDS) == ()


async def test_what_several_trackers_count_adds_up(store: Store) -> None:
    await store.demand.add({MODEL: 100, OTHER: 10}, NOW)
    await store.demand.add({MODEL: 300}, NOW)
    first, second = await store.demand.at(NOW)
    assert (first.variant, second.variant) == (OTHER, MODEL)
    assert second.requests_per_second == pytest.approx(first.requests_per_second * 40, rel=0.05)


async def test_counting_nothing_writes_nothing(store: Store) -> None:
    await store.demand.add({}, NOW)
    assert await store.demand.at(NOW) == ()


async def test_a_snapshot_tells_the_demand(store: Store) -> None:
    now = await store.clock.now()
    await store.demand.add({MODEL: 1000}, now)
    (demand,) = (await store.load_snapshot()).snapshot.demand
    assert isinstance(demand, Demand)
    assert demand.requests_per_second == pytest.approx(5.8, rel=0.05)
