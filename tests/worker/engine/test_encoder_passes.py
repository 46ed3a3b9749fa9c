import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.engine.encoder_passes import (
    LEAST_TOKENS,
    MOST_TOKENS,
    PASS_SECONDS,
    PassSize,
    shortest_first,
    take_pass,
)


@given(lengths=st.lists(st.integers(1, 60)), most=st.integers(1, 200))
def test_passes_take_every_text_once_and_pad_to_their_bound(lengths: list[int], most: int) -> None:
    waiting, passes = shortest_first(lengths), []
    while waiting:
        passes.append(take_pass(waiting, lengths, most))
    assert sorted(place for taken in passes for place in taken) == list(range(len(lengths)))
    for taken in passes:
        padded = len(taken) * max(lengths[place] for place in taken)
        assert padded <= most or len(taken) == 1
    if lengths:
        assert len(passes) <= math.ceil(2 * len(lengths) * max(lengths) / most) + 1


@given(
    seconds_a_token=st.floats(1e-6, 0.01),
    texts=st.lists(st.integers(1, 512), min_size=1, max_size=60),
)
def test_a_pass_of_several_texts_takes_little_longer_than_it_should(
    seconds_a_token: float, texts: list[int]
) -> None:
    size, waiting, lengths = PassSize(), shortest_first(texts), texts
    while waiting:
        taken = take_pass(waiting, lengths, size.tokens)
        tokens = len(taken) * max(lengths[place] for place in taken)
        seconds = tokens * seconds_a_token
        is_small = len(taken) == 1 or tokens <= LEAST_TOKENS
        assert is_small or seconds <= 1.01 * PASS_SECONDS
        size.ran(tokens, seconds)


def test_passes_grow_to_their_bound_where_the_device_is_quick() -> None:
    size = PassSize()
    for _ in range(5):
        size.ran(size.tokens, 0.001)
    assert size.tokens == MOST_TOKENS


def test_a_slow_pass_shrinks_the_next_one_at_once() -> None:
    size = PassSize()
    size.tokens = MOST_TOKENS
    size.ran(MOST_TOKENS, 4 * PASS_SECONDS)
    assert size.tokens == MOST_TOKENS // 4
    size.ran(MOST_TOKENS // 4, 100 * PASS_SECONDS)
    assert size.tokens == LEAST_TOKENS


@pytest.mark.parametrize("seconds", [0.01, PASS_SECONDS])
def test_a_quick_pass_of_few_tokens_shrinks_nothing(seconds: float) -> None:
    size = PassSize()
    size.ran(1, seconds)
    assert size.tokens == LEAST_TOKENS
