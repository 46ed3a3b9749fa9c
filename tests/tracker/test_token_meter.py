import asyncio
from contextlib import suppress

import pytest

from meshnet_common.edge.clock import ManualClock
from meshnet_tracker.key_rules import ApiKey
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.store import Store
from meshnet_tracker.token_meter import TokenMeter
from tests.tracker.builders import NOW

ANN = ApiKey(name="ann", sha256="0" * 64, shown="mn_sk_a", created_at=NOW, tokens_per_minute=100)


@pytest.fixture
async def meter(store: Store) -> TokenMeter:
    await store.api_keys.add(ANN)
    return TokenMeter(store, ManualClock(NOW))


async def left(store: Store) -> int:
    (pace,) = (await store.api_keys.take(ANN, NOW)).paces
    return pace.remaining


async def test_what_answers_cost_is_added_once(store: Store, meter: TokenMeter) -> None:
    meter.spent("ann", 7)
    meter.spent("ann", 3)
    await meter.flush()
    await meter.flush()
    assert await left(store) == 90


async def test_it_is_added_soon(store: Store, meter: TokenMeter) -> None:
    running = asyncio.get_running_loop().create_task(meter.run())
    meter.spent("ann", 10)
    async with asyncio.timeout(10):
        while await left(store) == 100:
            pass
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_what_could_not_be_added_is_kept(
    store: Store, meter: TokenMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_away(*_: object) -> None:
        raise DatabaseUnavailableError

    meter.spent("ann", 10)
    with monkeypatch.context() as patch:
        patch.setattr(store.api_keys, "spend", is_away)
        with pytest.raises(DatabaseUnavailableError):
            await meter.flush()
    meter.spent("ann", 1)
    await meter.flush()
    assert await left(store) == 89
