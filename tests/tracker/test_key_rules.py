import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_tracker.key_rules import (
    FITTING_SHARE,
    KEY_BYTES,
    PREFIX,
    WINDOW_SECONDS,
    ApiKey,
    KeyBook,
    Pace,
    duration,
    is_key_name,
    new_key,
)
from meshnet_tracker.tokens import token_sha256

NOW = 1000.0


def key(**facts: object) -> ApiKey:
    known: dict[str, object] = {"sha256": token_sha256("mn_sk_a"), "created_at": NOW}
    return ApiKey(name="ann", shown="mn_sk_a", **{**known, **facts})  # type: ignore[arg-type]


def test_no_two_keys_are_alike_and_each_has_256_bits() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(each) >= len(PREFIX) + KEY_BYTES * 4 // 3 for each in keys)


@pytest.mark.parametrize(
    ("facts", "opens"),
    [
        ({}, True),
        ({"revoked_at": NOW}, False),
        ({"expires_at": NOW + 1}, True),
        ({"expires_at": NOW}, False),
        ({"expires_at": NOW + 1, "revoked_at": NOW - 1}, False),
    ],
)
def test_a_key_opens_until_it_expires_or_is_revoked(facts: dict[str, object], opens: bool) -> None:
    assert key(**facts).opens(NOW) is opens
    found = KeyBook.of([key(**facts)]).find("mn_sk_a", NOW)
    assert (found is not None) is opens


def test_only_the_whole_key_is_found() -> None:
    book = KeyBook.of([key()])
    assert [book.find(shown, NOW) for shown in ("", "mn_sk_", "mn_sk_b", key().sha256)] == [
        None
    ] * 4


def test_a_key_without_models_opens_all_and_else_those_alone() -> None:
    assert key().allows("any")
    assert key(models=frozenset({"a"})).allows("a")
    assert not key(models=frozenset({"a"})).allows("a-int8")
    assert not key(models=frozenset()).allows("a")


@pytest.mark.parametrize("name", ["ann", "a.b-c_d@e", "x" * 64])
def test_a_name_is_short_and_plain(name: str) -> None:
    assert is_key_name(name)


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a\n", "ä", "a/b", "a\0"])
def test_any_other_name_is_none(name: str) -> None:
    assert not is_key_name(name)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0115, "12ms"), (1, "1s"), (1.5, "1.5s"), (59.9994, "59.999s"), (360, "6m0s")],
)
def test_times_look_like_openais(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.integers(1, 10_000), st.floats(0, 2 * WINDOW_SECONDS))
def test_what_is_left_fits_and_one_more_does_not(limit: int, busy_seconds: float) -> None:
    step = WINDOW_SECONDS / limit
    pace = Pace(NOW + min(busy_seconds, WINDOW_SECONDS), NOW, step)
    assert 0 <= pace.remaining <= pace.limit == limit
    window_ends = NOW + WINDOW_SECONDS + step * (1 - FITTING_SHARE)
    assert pace.busy_until + pace.remaining * step <= window_ends + 1e-6
    if pace.remaining < limit:
        assert pace.busy_until + (pace.remaining + 1) * step > window_ends - 1e-6
    later = replace(pace, now=NOW + pace.retry_seconds + 1e-6)
    assert later.remaining > 0
    assert not math.isnan(pace.reset_seconds)
