from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.engine.sampling import choose, uniform
from meshnet_worker.engine_port import Draw

LOGITS = torch.tensor([0.5, 2.0, 1.0, -1.0, 1.5])
GREEDY = Draw(temperature=0.0, top_p=1.0, seed=1)
DRAWS = 4000
FIRST_DRAWS = [1, 0, 1, 4, 4, 4, 4, 2, 1, 1, 3, 4]


def draws(
    logits: torch.Tensor, temperature: float = 1.0, top_p: float = 1.0, count: int = DRAWS
) -> Counter[int]:
    draw = Draw(temperature, top_p, seed=11)
    return Counter(choose(logits, draw, position) for position in range(count))


def test_greedy_takes_the_largest() -> None:
    assert choose(LOGITS, GREEDY, 0) == 1


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-9])
def test_a_tiny_temperature_takes_the_largest(temperature: float) -> None:
    assert choose(LOGITS, Draw(temperature, 1.0, seed=1), 0) == 1


def test_greedy_takes_the_first_of_equals() -> None:
    assert choose(torch.tensor([1.0, 3.0, 3.0]), GREEDY, 0) == 1


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 20))
def test_seed_and_position_decide_the_draw(seed: int, position: int) -> None:
    draw = Draw(temperature=1.0, top_p=0.9, seed=seed)
    first = choose(LOGITS, draw, position)
    torch.manual_seed(position)
    assert choose(LOGITS.clone(), draw, position) == first


def test_another_seed_or_position_draws_anew() -> None:
    logits = torch.zeros(1000)
    by_position = [choose(logits, Draw(1.0, 1.0, 1), position) for position in range(20)]
    by_seed = [choose(logits, Draw(1.0, 1.0, seed), 1) for seed in range(20)]
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
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(draws(logits, top_p=0.6, count=500)) == {0, 1}
    assert set(draws(logits, top_p=0.81, count=500)) == {0, 1, 2}
    assert set(draws(logits, top_p=0.4, count=100)) == {0}
    assert set(draws(logits, top_p=1.0, count=1000)) == {0, 1, 2, 3}


@pytest.mark.parametrize("top_p", [0.0, 1e-9])
def test_the_most_likely_token_is_always_left(top_p: float) -> None:
    assert set(draws(LOGITS, top_p=top_p, count=50)) == {1}


def test_a_token_that_is_impossible_is_never_drawn() -> None:
    logits = torch.tensor([0.0, float("-inf"), 0.0])
    assert set(draws(logits, count=300)) == {0, 2}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("place", [0, 2])
def test_a_logit_that_is_no_number_is_refused(temperature: float, place: int) -> None:
    logits = LOGITS.clone()
    logits[place] = float("nan")
    with pytest.raises(ValueError, match="not a number"):
        choose(logits, Draw(temperature, 0.9, 1), 0)


def test_the_draw_is_the_same_in_every_release() -> None:
    # A Worker that takes over must draw what the lost one would have drawn.
    first = [choose(LOGITS, Draw(1.0, 1.0, 7), position) for position in range(12)]
    assert first == FIRST_DRAWS


@given(st.integers(0, 1 << 64), st.integers(0, 1 << 32))
def test_a_uniform_number_is_below_one(seed: int, position: int) -> None:
    assert 0 <= uniform(seed, position) < 1
    assert uniform(seed, position) == uniform(seed, position)


def test_uniform_numbers_are_spread_evenly() -> None:
    tenths = Counter(int(uniform(5, position) * 10) for position in range(10_000))
    assert all(abs(count - 1000) < 150 for count in tenths.values())
