from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from meshnet_gateway.federation.shares import Shares

WEIGHTS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.one_of(st.integers(1, 20).map(float), st.floats(1e-3, 1e3)),
    min_size=1,
)


@given(WEIGHTS, st.integers(1, 60))
def test_after_any_number_of_choices_each_share_is_within_one_of_its_due(
    weights: dict[str, float], choices: int
) -> None:
    shares, counts = Shares(), Counter[str]()
    total = sum(map(Fraction, weights.values()))

    for number in range(1, choices + 1):
        counts[shares.choose(weights)] += 1
        for name, weight in weights.items():
            assert abs(counts[name] - number * Fraction(weight) / total) < 1


@given(st.integers(1, 6), st.integers(1, 5))
def test_equal_weights_take_turns(candidates: int, rounds: int) -> None:
    shares, weights = Shares(), dict.fromkeys("abcdef"[:candidates], 0.1)

    for _ in range(rounds):
        assert sorted(shares.choose(weights) for _ in range(candidates)) == sorted(weights)


def test_one_that_was_away_gets_no_more_than_its_share_when_it_is_back() -> None:
    shares = Shares()
    both = {"a": 1.0, "b": 1.0}
    for _ in range(100):
        shares.choose({"a": 1.0})

    assert Counter(shares.choose(both) for _ in range(10)) == {"a": 5, "b": 5}


def test_a_new_weight_counts_from_when_it_is_set() -> None:
    shares = Shares()
    for _ in range(50):
        shares.choose({"a": 9.0, "b": 1.0})

    assert Counter(shares.choose({"a": 1.0, "b": 1.0}) for _ in range(10)) == {"a": 5, "b": 5}
