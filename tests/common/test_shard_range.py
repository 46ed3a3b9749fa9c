import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.shard_range import ShardRange

RANGES = st.builds(
    lambda start, size: ShardRange(start, start + size), st.integers(0, 12), st.integers(1, 12)
)


def layers(*ranges: ShardRange) -> set[int]:
    return {layer for one in ranges for layer in one.layers}


@pytest.mark.parametrize(("start", "end"), [(0, 0), (3, 3), (4, 3), (-1, 2)])
def test_an_empty_or_negative_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a Shard Range"):
        ShardRange(start, end)


def test_a_range_is_written_half_open() -> None:
    assert str(ShardRange(2, 5)) == "[2, 5)"


@given(RANGES)
def test_the_length_counts_the_layers(one: ShardRange) -> None:
    assert len(one) == len(layers(one)) == one.end - one.start


@given(RANGES, RANGES)
def test_contains_is_the_subset_of_layers(one: ShardRange, other: ShardRange) -> None:
    assert one.contains(other) == (layers(other) <= layers(one))


@given(RANGES, RANGES)
def test_overlap_is_the_intersection_of_layers(one: ShardRange, other: ShardRange) -> None:
    shared = one.overlap(other)
    assert layers(*filter(None, [shared])) == layers(one) & layers(other)


@given(RANGES, RANGES)
def test_ranges_that_touch_join_and_others_are_refused(one: ShardRange, other: ShardRange) -> None:
    if one.touches(other):
        assert layers(one.union(other)) == layers(one) | layers(other)
    else:
        with pytest.raises(ValueError, match="a gap lies between"):
            one.union(other)


@given(RANGES, RANGES)
def test_what_is_left_without_another_are_its_other_layers(
    one: ShardRange, other: ShardRange
) -> None:
    left = one.minus(other)
    assert layers(*left) == layers(one) - layers(other)
    assert all(not a.touches(b) for a in left for b in left if a is not b)


@given(st.lists(RANGES))
def test_ranges_sort_by_their_first_layer(ranges: list[ShardRange]) -> None:
    assert sorted(ranges) == sorted(ranges, key=lambda one: (one.start, one.end))
