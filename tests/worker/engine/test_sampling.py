import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.protocol.sampling import LEAST_LOGPROB, Sampling
from meshnet_worker.engine.sampling import (
    bias,
    draw,
    forbid,
    greedy,
    likeliest,
    logprobs_of,
    penalise_answer,
    penalise_repetition,
    uniform,
)

LOGITS = torch.tensor([0.5, 2.0, 1.0, -1.0, 1.5], dtype=torch.float64)
DRAWS = 4000
FIRST_DRAWS = [1, 0, 1, 4, 4, 4, 4, 2, 1, 1, 3, 4]
INFINITY = float("inf")


def sampling(temperature: float = 1.0, top_p: float = 1.0, seed: int = 11, **more: Any) -> Sampling:
    return Sampling(temperature=temperature, top_p=top_p, seed=seed, **more)


def draws(logits: torch.Tensor, count: int = DRAWS, **fields: Any) -> Counter[int]:
    one = sampling(**fields)
    return Counter(draw(logits, one, position) for position in range(count))


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def with_all_in_order(logits: torch.Tensor, one: Sampling, position: int) -> int:
    """The same draw, from all tokens in order."""
    scaled = (logits - logits.max()) / one.temperature
    order = logits.sort(descending=True, stable=True).indices
    if one.top_k:
        order = order[: one.top_k]
    probabilities = torch.softmax(scaled[order], dim=-1)
    is_kept = probabilities.cumsum(dim=-1) - probabilities < one.top_p
    is_kept &= probabilities >= one.min_p * probabilities[0]
    is_kept[0] = True
    reached = (probabilities * is_kept).cumsum(dim=-1)
    target = uniform(one.seed, position) * reached[-1]
    return int(order[int((reached <= target).sum())])


def test_greedy_takes_the_largest_of_each_row() -> None:
    rows = torch.stack((LOGITS, LOGITS.flip(0))).float()
    assert greedy(rows) == [1, 3]


def test_greedy_takes_the_first_of_equals() -> None:
    assert greedy(torch.tensor([[1.0, 3.0, 3.0]])) == [1]
    assert draw(tensor(1.0, 3.0, 3.0), sampling(temperature=0.0), 0) == 1


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-9])
def test_a_tiny_temperature_takes_the_largest(temperature: float) -> None:
    assert draw(LOGITS, sampling(temperature), 0) == 1


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 20))
def test_seed_and_position_decide_the_draw(seed: int, position: int) -> None:
    one = sampling(top_p=0.9, seed=seed)
    first = draw(LOGITS, one, position)
    torch.manual_seed(position)
    assert draw(LOGITS.clone(), one, position) == first


def test_another_seed_or_position_draws_anew() -> None:
    logits = torch.zeros(1000, dtype=torch.float64)
    by_position = [draw(logits, sampling(seed=1), position) for position in range(20)]
    by_seed = [draw(logits, sampling(seed=seed), 1) for seed in range(20)]
    assert len(set(by_position)) > 15
    assert len(set(by_seed)) > 15


def test_draws_follow_the_probabilities() -> None:
    expected = torch.softmax(LOGITS, dim=0) * DRAWS
    counts = draws(LOGITS)
    squares = [(counts[i] - float(e)) ** 2 / float(e) for i, e in enumerate(expected)]
    # Chi-square with 4 degrees of freedom exceeds 18.5 once in a thousand.
    assert sum(squares) < 18.5


def test_a_higher_temperature_levels_the_draws() -> None:
    cold, hot = draws(LOGITS, temperature=0.3)[1], draws(LOGITS, temperature=3.0)[1]
    assert cold > 0.75 * DRAWS
    assert hot < 0.35 * DRAWS


def test_only_the_smallest_set_that_reaches_top_p_is_drawn_from() -> None:
    logits = tensor(0.5, 0.3, 0.15, 0.05).log()
    assert set(draws(logits, 500, top_p=0.6)) == {0, 1}
    assert set(draws(logits, 500, top_p=0.81)) == {0, 1, 2}
    assert set(draws(logits, 100, top_p=0.4)) == {0}
    assert set(draws(logits, 1000, top_p=1.0)) == {0, 1, 2, 3}


def test_only_the_top_k_are_drawn_from() -> None:
    assert set(draws(LOGITS, 500, top_k=2)) == {1, 4}
    assert set(draws(LOGITS, 100, top_k=1)) == {1}
    assert set(draws(LOGITS, 1000, top_k=9)) == set(range(5))


def test_of_equals_the_top_k_are_those_with_the_lowest_ids() -> None:
    assert set(draws(torch.zeros(600, dtype=torch.float64), 200, top_k=3)) == {0, 1, 2}


def test_top_p_counts_what_top_k_leaves_as_all() -> None:
    # Of all, the first has 0.4; of the two that are left, more than half.
    logits = tensor(0.4, 0.3, 0.2, 0.1).log()
    assert set(draws(logits, 300, top_k=2, top_p=0.55)) == {0}
    assert set(draws(logits, 300, top_p=0.55)) == {0, 1}


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest() -> None:
    logits = tensor(0.5, 0.3, 0.15, 0.05).log()
    assert set(draws(logits, 500, min_p=0.5)) == {0, 1}
    assert set(draws(logits, 500, min_p=0.29)) == {0, 1, 2}
    assert set(draws(logits, 100, min_p=1.0)) == {0}


@pytest.mark.parametrize("top_p", [0.0, 1e-9])
def test_the_most_likely_token_is_always_left(top_p: float) -> None:
    assert set(draws(LOGITS, 50, top_p=top_p)) == {1}


@pytest.mark.parametrize("fields", [{}, {"top_k": 2}, {"top_p": 0.999999}, {"min_p": 0.001}])
def test_a_token_that_is_impossible_is_never_drawn(fields: dict[str, Any]) -> None:
    assert set(draws(tensor(0.0, -INFINITY, 0.0), 300, **fields)) == {0, 2}


@given(
    st.integers(2, 600),
    st.sampled_from([0.05, 0.7, 1.0, 30.0]),
    st.sampled_from([0.0, 0.3, 0.9, 0.999, 1.0]),
    st.sampled_from([0, 1, 7, 300]),
    st.sampled_from([0.0, 0.02, 0.6, 1.0]),
    st.integers(0, 1 << 30),
)
def test_most_draws_need_only_the_likeliest_in_order(
    size: int, temperature: float, top_p: float, top_k: int, min_p: float, seed: int
) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(seed)).double() * 3
    one = sampling(temperature, top_p, seed, top_k=top_k, min_p=min_p)
    assert draw(logits, one, 5) == with_all_in_order(logits, one, 5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("place", [0, 2])
def test_a_logit_that_is_no_number_is_refused(temperature: float, place: int) -> None:
    logits = LOGITS.clone()
    logits[place] = float("nan")
    with pytest.raises(ValueError, match="not a number"):
        draw(logits, sampling(temperature), 0)
    (refusal,) = greedy(logits.unsqueeze(0))
    assert isinstance(refusal, ValueError)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_is_drawn_where_nothing_is_left(temperature: float) -> None:
    nothing = torch.full((5,), -INFINITY, dtype=torch.float64)
    with pytest.raises(ValueError, match="no token is left"):
        draw(nothing, sampling(temperature), 0)
    assert isinstance(greedy(nothing.unsqueeze(0))[0], ValueError)


def test_the_draw_is_the_same_in_every_release() -> None:
    # A Worker that takes over must draw what the lost one would have drawn.
    assert [draw(LOGITS, sampling(seed=7), position) for position in range(12)] == FIRST_DRAWS


def test_a_bias_is_added_each_time_that_it_is_given() -> None:
    logits = LOGITS.clone()
    bias(logits, ids(3, 0, 3), tensor(2.0, -1.0, 1.0))
    assert logits.tolist() == [-0.5, 2.0, 1.0, 2.0, 1.5]


def test_a_repetition_is_penalised_once_whatever_its_sign() -> None:
    logits = LOGITS.clone()
    penalise_repetition(logits, ids(1, 3, 1, 1), 2.0)
    assert logits.tolist() == [0.5, 1.0, 1.0, -2.0, 1.5]


def test_an_answer_is_penalised_by_how_often_and_by_whether_it_has_a_token() -> None:
    logits = LOGITS.clone()
    penalise_answer(logits, ids(1, 3, 1, 1), frequency=0.5, presence=0.25)
    assert logits.tolist() == [0.5, 2.0 - 3 * 0.5 - 0.25, 1.0, -1.0 - 0.5 - 0.25, 1.5]


def test_an_empty_answer_is_not_penalised() -> None:
    logits = LOGITS.clone()
    penalise_answer(logits, ids(), frequency=0.5, presence=0.25)
    penalise_repetition(logits, ids(), 2.0)
    assert torch.equal(logits, LOGITS)


def test_what_is_forbidden_is_impossible_unless_nothing_else_is_left() -> None:
    logits = tensor(1.0, 2.0, -INFINITY)
    forbid(logits, ids(1))
    assert logits.tolist() == [1.0, -INFINITY, -INFINITY]
    forbid(logits, ids(0))
    assert logits.tolist() == [1.0, -INFINITY, -INFINITY]


def test_logprobs_are_those_of_the_model_itself() -> None:
    told = logprobs_of(LOGITS, 3, 2)
    expected = torch.log_softmax(LOGITS, dim=0).tolist()
    assert told.logprob == pytest.approx(expected[3])
    assert [token_id for token_id, _ in told.top] == [1, 4]
    assert [logprob for _, logprob in told.top] == pytest.approx([expected[1], expected[4]])


def test_no_alternatives_may_be_asked_for() -> None:
    assert logprobs_of(LOGITS, 1, 0).top == ()


@pytest.mark.parametrize("own", [-INFINITY, float("nan")])
def test_no_infinity_is_told(own: float) -> None:
    told = logprobs_of(tensor(own, 0.0, -INFINITY), 0, 3)
    every = [told.logprob, *(logprob for _, logprob in told.top)]
    assert all(map(math.isfinite, every))
    assert told.logprob == LEAST_LOGPROB


@given(
    st.lists(st.sampled_from([0.0, 1.0, -1.0, 2.5, -INFINITY]), min_size=1, max_size=40),
    st.integers(0, 45),
)
def test_equals_go_by_their_ids(values: list[float], count: int) -> None:
    best = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert likeliest(tensor(*values), count).tolist() == best


@given(st.integers(0, 1 << 64), st.integers(0, 1 << 32))
def test_a_uniform_number_is_below_one(seed: int, position: int) -> None:
    assert 0 <= uniform(seed, position) < 1
    assert uniform(seed, position) == uniform(seed, position)


def test_uniform_numbers_are_spread_evenly() -> None:
    tenths = Counter(int(uniform(5, position) * 10) for position in range(10_000))
    assert all(abs(count - 1000) < 150 for count in tenths.values())
