import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes, usable_bytes
from meshnet_tracker.planning.orders import Candidate, Placement
from meshnet_tracker.planning.placement import fill_range, fresh_placement
from meshnet_tracker.planning.snapshot import PlannerPolicy
from tests.tracker.planning.meshes import GB, candidate, variant

EXAMPLES = 2000 if os.environ.get("CI") else 150


def sizes_of(layers: int, embedding_bytes: int = 0, head_bytes: int = 0) -> LayerSizes:
    return LayerSizes.of(variant(layers, embedding_bytes=embedding_bytes, head_bytes=head_bytes))


def ranges(placed: Placement) -> dict[str, tuple[int, int]]:
    return {str(name): (each.start, each.end) for name, each in placed.items()}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            PlannerPolicy(headroom_bytes=8 * GB),
            {"A": (0, 27), "B": (27, 43), "C": (43, 59)},
        ),
        (PlannerPolicy(), {"A": (0, 23), "B": (23, 37), "C": (37, 51)}),
    ],
)
def test_the_worked_example_of_a4_leaves_its_gap_at_the_end(
    policy: PlannerPolicy, expected: dict[str, tuple[int, int]]
) -> None:
    sizes = LayerSizes.of(variant([4_375_000_000] * 80))
    pool = [
        Candidate(WorkerId(name), usable_bytes(vram * GB, policy), 1.0)
        for name, vram in (("C", 80), ("A", 128), ("B", 80))
    ]
    assert ranges(fresh_placement(sizes, pool)) == expected


def test_equal_workers_share_equally_and_a_faster_one_carries_more() -> None:
    equal = [candidate("B", 16), candidate("C", 16)]
    faster = [candidate("B", 16, speed=2.0), candidate("C", 16)]
    assert ranges(fresh_placement(sizes_of(24), equal)) == {"B": (0, 12), "C": (12, 24)}
    assert ranges(fresh_placement(sizes_of(24), faster)) == {"B": (0, 16), "C": (16, 24)}


def test_two_copies_are_better_than_one_deep_one() -> None:
    pool = [candidate(f"{index}", n) for index, n in enumerate((40, 40, 20, 20, 10, 10))]
    placed = ranges(fresh_placement(sizes_of(70), pool))
    first = ((0, 40), (40, 60), (60, 70))
    assert sorted(placed.values()) == sorted(first * 2)


def test_a_worker_that_holds_everything_is_never_split() -> None:
    pool = [candidate("big", 13), candidate("b", 4), candidate("c", 4)]
    placed = ranges(fresh_placement(sizes_of(6), pool))
    assert placed == {"big": (0, 6), "b": (0, 3), "c": (3, 6)}


def test_workers_without_room_to_spare_are_filled_in_speed_order() -> None:
    pool = [candidate("a", 13, 3.0), candidate("b", 5, 2.0), candidate("c", 3, 1.0)]
    placed = ranges(fresh_placement(sizes_of(21), pool))
    assert placed == {"a": (0, 13), "b": (13, 18), "c": (18, 21)}


def test_six_of_thirteen_make_two_copies_of_three_twelves() -> None:
    placed = fresh_placement(sizes_of(36), [candidate(f"{i}", 13) for i in range(6)])
    assert sorted(ranges(placed).values()) == sorted(((0, 12), (12, 24), (24, 36)) * 2)


def test_a_gap_takes_the_fewest_workers_largest_first() -> None:
    pool = [candidate("small", 2), candidate("large", 7), candidate("middle", 4)]
    placed = fill_range(sizes_of(20), ShardRange(10, 19), pool)
    assert set(placed) == {"large", "middle"}
    assert placed[WorkerId("large")].start == 10
    assert placed[WorkerId("middle")].end == 19


def test_embeddings_and_output_head_take_room_where_they_belong() -> None:
    pool = [candidate(name, 10) for name in "abc"]
    placed = ranges(fresh_placement(sizes_of(20, 4 * GB, 6 * GB), pool))
    assert placed == {"a": (0, 6), "b": (6, 16), "c": (16, 20)}


def test_a_worker_too_small_for_the_output_head_goes_before_the_tail() -> None:
    pool = [candidate("a", 8), candidate("b", 6), candidate("c", 1)]
    placed = ranges(fresh_placement(sizes_of(12, 0, 3 * GB), pool))
    assert placed == {"a": (0, 8), "c": (8, 9), "b": (9, 12)}


def test_one_worker_bound_to_layer_zero_begins_each_copy() -> None:
    pool = [candidate("head", 4, bound=True), candidate("big", 8), candidate("other", 8)]
    placed = ranges(fresh_placement(sizes_of(10), pool))
    assert placed["head"][0] == 0
    assert placed["big"][0] == placed["head"][1]


def test_of_two_workers_bound_to_layer_zero_one_copy_takes_one() -> None:
    pool = [candidate("head", 4, bound=True), candidate("second", 3, bound=True)]
    assert ranges(fresh_placement(sizes_of(10), pool)) == {"head": (0, 4)}


def test_a_range_in_the_middle_takes_nobody_bound_to_layer_zero() -> None:
    assert fill_range(sizes_of(10), ShardRange(2, 4), [candidate("head", 4, bound=True)]) == {}


@settings(deadline=None, max_examples=EXAMPLES)
@given(
    layers=st.integers(1, 20),
    embedding=st.integers(0, 3),
    head=st.integers(0, 3),
    capacities=st.lists(st.integers(0, 24), max_size=8),
    speeds=st.lists(st.sampled_from((0.5, 1.0, 2.0, 7.0)), min_size=8, max_size=8),
)
def test_a_fresh_placement_fits_and_is_whole_copies_or_one_run_from_layer_zero(
    layers: int, embedding: int, head: int, capacities: list[int], speeds: list[float]
) -> None:
    sizes = sizes_of(layers, embedding * GB, head * GB)
    pool = [candidate(f"{i}", n, speeds[i]) for i, n in enumerate(capacities)]
    placed = fresh_placement(sizes, pool)
    budgets = {each.worker_id: each.budget_bytes for each in pool}
    assert all(sizes.range_bytes(placed[name]) <= budgets[name] for name in placed)
    counts = [sum(layer in each.layers for each in placed.values()) for layer in range(layers)]
    assert counts == sorted(counts, reverse=True)
    if sum(max(0, n - embedding - head) for n in capacities) >= layers:
        assert min(counts) == max(counts) >= 1
    assert fresh_placement(sizes, reversed(pool)) == placed
