from collections import Counter
from typing import Literal

import msgspec
import pytest

from meshnet_gateway.serving.endpoint_state import EndpointState, Outcome
from meshnet_gateway.serving.served_model import ServedModel
from tests.gateway.running import endpoint
from tests.gateway.serving.test_admission import ONE, TWO, served

NONE = frozenset[str]()


def never(_endpoint: object) -> EndpointState:
    raise AssertionError


def chosen(one: ServedModel, key: str = "", barred: frozenset[str] = NONE) -> EndpointState:
    state = one.choose(key, barred, 0.0)
    assert state is not None
    return state


def balanced(balance: Literal["least", "round_robin", "prefix"], places: int = 20) -> ServedModel:
    one = served(ONE, TWO, places=places)
    one.model = msgspec.structs.replace(one.model, balance=balance)
    return one


@pytest.mark.parametrize("balance", ["least", "round_robin"])
def test_ten_requests_are_five_for_each_of_two(
    balance: Literal["least", "round_robin"],
) -> None:
    one, counts = balanced(balance), Counter[str]()
    for turn in range(1, 11):
        state = chosen(one)
        state.begin(turn, 0.0)
        counts[state.endpoint.base_url] += 1

    assert counts == {ONE: 5, TWO: 5}


def test_a_warm_cache_is_found_again() -> None:
    one = balanced("prefix")
    by_key = {key: {chosen(one, key).endpoint.base_url for _ in range(3)} for key in "abcdefgh"}

    assert all(len(urls) == 1 for urls in by_key.values())
    assert len(set.union(*by_key.values())) == 2


def test_one_that_cools_comes_last_and_is_better_than_none() -> None:
    one = served(ONE, TWO)
    first = chosen(one)
    first.unreachable(0.0)
    other = chosen(one)
    assert other is not first

    other.begin(1, 0.0)
    assert chosen(one) is first


def test_a_barred_one_is_never_chosen() -> None:
    one = served(ONE, TWO)

    assert chosen(one, barred=frozenset({ONE})).endpoint.base_url == TWO
    assert one.choose("", frozenset({ONE, TWO}), 0.0) is None


def test_a_model_takes_no_more_than_its_ceiling() -> None:
    one = served(ONE, TWO, places=5)
    one.model = msgspec.structs.replace(one.model, ceiling=1)
    assert one.capacity == 1
    chosen(one).begin(1, 0.0)

    assert not one.may_take(0.0)
    assert one.choose("", NONE, 0.0) is None


def test_what_is_known_of_an_endpoint_outlives_new_figures() -> None:
    one = served(ONE, TWO)
    state = chosen(one)
    state.begin(1, 0.0)
    kept = endpoint(state.endpoint.base_url, max_concurrent_requests=7)
    one.set_endpoints([kept], never)

    assert [it.endpoint for it in one] == [kept]
    assert one.in_flight == 1


def test_what_is_in_flight_in_another_group_ends_there() -> None:
    one, other = served(ONE), served(ONE)
    state = chosen(one)
    attempt = state.begin(1, 0.0)
    fresh = next(iter(other))
    one.set_endpoints([endpoint(ONE, gpu_group="else")], lambda _: fresh)
    assert (one.in_flight, state.group.total) == (0, 1)

    state.end(attempt, Outcome.SUCCEEDED, 0.0, others=0)
    assert state.group.total == 0
