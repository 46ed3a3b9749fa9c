import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshnet_tracker.key_rules import WINDOW_SECONDS, ApiKey
from meshnet_tracker.store.errors import ApiKeyError
from meshnet_tracker.store.store import Store
from meshnet_tracker.tokens import token_sha256
from tests.tracker.builders import NOW

ANN = ApiKey(
    name="ann",
    sha256=token_sha256("mn_sk_ann"),
    shown="mn_sk_a",
    created_at=NOW,
    models=frozenset({"tiny", "org/other"}),
    requests_per_minute=3,
    expires_at=NOW + 100,
)
_numbers = itertools.count()

BOB = ApiKey(name="bob", sha256=token_sha256("mn_sk_bob"), shown="mn_sk_b", created_at=NOW)


@pytest.fixture
async def other(database: str) -> AsyncIterator[Store]:
    """A second Tracker's view of the same database."""
    opened = Store.open(database)
    yield opened
    await opened.close()


async def test_keys_come_back_as_they_were_made(store: Store, other: Store) -> None:
    await store.api_keys.add(BOB)
    await store.api_keys.add(ANN)
    assert await other.api_keys.all() == (ANN, BOB)


async def test_a_key_that_opens_no_model_stays_one(store: Store) -> None:
    await store.api_keys.add(replace(BOB, models=frozenset()))
    assert [key.models for key in await store.api_keys.all()] == [frozenset()]


async def test_a_name_is_given_once_even_after_it_was_revoked(store: Store) -> None:
    await store.api_keys.add(ANN)
    await store.api_keys.revoke("ann", NOW)
    with pytest.raises(ApiKeyError, match="already"):
        await store.api_keys.add(replace(BOB, name="ann"))


async def test_what_was_revoked_stays_listed_and_is_revoked_once(store: Store) -> None:
    await store.api_keys.add(BOB)
    await store.api_keys.revoke("bob", NOW + 1)
    assert await store.api_keys.all() == (replace(BOB, revoked_at=NOW + 1),)
    for name in ("bob", "nobody"):
        with pytest.raises(ApiKeyError, match=name):
            await store.api_keys.revoke(name, NOW + 2)


async def test_a_limit_may_be_spent_at_once_and_comes_back_evenly(store: Store) -> None:
    await store.api_keys.add(ANN)
    paces = [await store.api_keys.take(ANN, NOW) for _ in range(5)]
    assert [pace.is_within for pace in paces] == [True, True, True, False, False]
    assert [pace.remaining for pace in paces] == [2, 1, 0, 0, 0]
    wait_seconds = paces[-1].retry_seconds
    assert 0 < wait_seconds <= WINDOW_SECONDS / 3
    assert not (await store.api_keys.take(ANN, NOW + wait_seconds - 0.1)).is_within
    assert (await store.api_keys.take(ANN, NOW + wait_seconds + 0.1)).is_within
    assert not (await store.api_keys.take(ANN, NOW + wait_seconds + 0.2)).is_within


async def test_two_trackers_count_together(store: Store, other: Store) -> None:
    await store.api_keys.add(ANN)
    async with asyncio.TaskGroup() as tasks:
        taking = [
            tasks.create_task(tracker.api_keys.take(ANN, NOW))
            for tracker in (store, other)
            for _ in range(10)
        ]
    assert sum(each.result().is_within for each in taking) == ANN.requests_per_minute


async def test_a_revoked_key_takes_nothing(store: Store) -> None:
    await store.api_keys.add(ANN)
    await store.api_keys.revoke("ann", NOW)
    with pytest.raises(ApiKeyError, match="ann"):
        await store.api_keys.take(ANN, NOW)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(1, 20), st.lists(st.floats(0, 20), min_size=1, max_size=60))
async def test_no_minute_sees_more_than_twice_the_limit_and_no_pause_less_than_it(
    store: Store, limit: int, pauses: list[float]
) -> None:
    name = f"key-{next(_numbers)}"
    key = replace(BOB, name=name, sha256=token_sha256(name), requests_per_minute=limit)
    await store.api_keys.add(key)
    now, taken = NOW, []
    for pause in pauses:
        now += pause
        if (await store.api_keys.take(key, now)).is_within:
            taken.append(now)
    for first in taken:
        assert sum(first <= at < first + WINDOW_SECONDS for at in taken) <= 2 * limit + 1
    for _ in range(limit):
        assert (await store.api_keys.take(key, now + 2 * WINDOW_SECONDS)).is_within
