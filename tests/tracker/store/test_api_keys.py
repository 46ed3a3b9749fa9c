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
    taken = [await store.api_keys.take(ANN, NOW) for _ in range(5)]
    assert [each.is_counted for each in taken] == [True, True, True, False, False]
    assert [each.paces[0].remaining for each in taken] == [2, 1, 0, 0, 0]
    wait_seconds = taken[-1].exceeded.retry_seconds
    assert 0 < wait_seconds <= WINDOW_SECONDS / 3
    assert not (await store.api_keys.take(ANN, NOW + wait_seconds - 0.1)).is_counted
    assert (await store.api_keys.take(ANN, NOW + wait_seconds + 0.1)).is_counted
    assert not (await store.api_keys.take(ANN, NOW + wait_seconds + 0.2)).is_counted


async def test_tokens_may_pass_their_limit_once_and_are_made_up_for(store: Store) -> None:
    key = replace(ANN, requests_per_minute=None, tokens_per_minute=600)
    await store.api_keys.add(key)
    assert [(await store.api_keys.take(key, NOW)).is_counted for _ in range(9)] == [True] * 9
    await store.api_keys.spend({"ann": 599, "nobody": 5}, NOW)
    (pace,) = (await store.api_keys.take(key, NOW)).paces
    assert (pace.kind, pace.remaining) == ("tokens", 1)
    await store.api_keys.spend({"ann": 601}, NOW)
    refused = await store.api_keys.take(key, NOW)
    assert not refused.is_counted
    assert refused.exceeded.retry_seconds == pytest.approx(60.05)
    assert not (await store.api_keys.take(key, NOW + 60)).is_counted
    assert (await store.api_keys.take(key, NOW + 60.1)).is_counted


async def test_a_request_that_one_limit_refuses_costs_nothing_of_the_other(store: Store) -> None:
    key = replace(ANN, tokens_per_minute=60)
    await store.api_keys.add(key)
    await store.api_keys.spend({"ann": 60}, NOW)
    refused = [await store.api_keys.take(key, NOW) for _ in range(5)]
    assert {each.exceeded.kind for each in refused} == {"tokens"}
    later = [await store.api_keys.take(key, NOW + 60) for _ in range(4)]
    assert [each.is_counted for each in later] == [True, True, True, False]
    assert later[-1].exceeded.kind == "requests"


async def test_a_key_without_a_limit_of_tokens_spends_none(store: Store) -> None:
    await store.api_keys.add(ANN)
    await store.api_keys.spend({"ann": 10**9}, NOW)
    assert [pace.kind for pace in (await store.api_keys.take(ANN, NOW)).paces] == ["requests"]


async def test_two_trackers_count_together(store: Store, other: Store) -> None:
    await store.api_keys.add(ANN)
    async with asyncio.TaskGroup() as tasks:
        taking = [
            tasks.create_task(tracker.api_keys.take(ANN, NOW))
            for tracker in (store, other)
            for _ in range(10)
        ]
    assert sum(each.result().is_counted for each in taking) == ANN.requests_per_minute


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
        if (await store.api_keys.take(key, now)).is_counted:
            taken.append(now)
    for first in taken:
        assert sum(first <= at < first + WINDOW_SECONDS for at in taken) <= 2 * limit + 1
    for _ in range(limit):
        assert (await store.api_keys.take(key, now + 2 * WINDOW_SECONDS)).is_counted
