import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog  # type: ignore[import-untyped]

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.flow import changed_flows, is_better, layer_flows, most_flow

EXAMPLES = 2000 if os.environ.get("CI") else 150


def test_a_layers_flow_adds_up_what_its_workers_can_spare_for_it() -> None:
    runs = [(ShardRange(0, 2), 4.0), (ShardRange(1, 3), 1.0)]
    assert layer_flows(runs, 4) == [2.0, 2.5, 0.5, 0.0]


def test_changed_flows_are_those_of_the_changed_runs() -> None:
    flows = layer_flows([(ShardRange(0, 2), 4.0), (ShardRange(1, 3), 1.0)], 3)
    moved = changed_flows(flows, [(ShardRange(0, 2), ShardRange(0, 1), 4.0)])
    gone = changed_flows(moved, [(ShardRange(1, 3), None, 1.0)])
    assert moved == pytest.approx(
        layer_flows([(ShardRange(0, 1), 4.0), (ShardRange(1, 3), 1.0)], 3)
    )
    assert gone == pytest.approx([4.0, 0.0, 0.0])


def test_the_thinnest_layer_decides_and_then_the_next() -> None:
    assert is_better([2.0, 3.0], [5.0, 1.0])
    assert is_better([1.0, 3.0], [2.0, 1.0])
    assert not is_better([3.0, 1.0], [1.0, 3.0])


def test_a_difference_of_rounding_is_none() -> None:
    assert not is_better([0.1 + 0.2], [0.3])
    assert not is_better([0.3], [0.1 + 0.2])


def test_workers_run_of_their_layers_what_others_leave_over() -> None:
    runs = [(ShardRange(0, 4), 4.0), (ShardRange(0, 2), 2.0)]
    assert min(layer_flows(runs, 4)) == 1.0
    assert most_flow(runs, 4) == pytest.approx(1.5)


def test_layers_that_lie_apart_share_what_only_they_lack() -> None:
    runs = [(ShardRange(0, 3), 2.0), (ShardRange(1, 2), 9.0)]
    assert most_flow(runs, 3) == pytest.approx(1.0)


def test_without_a_worker_for_a_layer_nothing_flows() -> None:
    assert most_flow([(ShardRange(0, 2), 4.0)], 3) == 0.0
    assert most_flow([], 3) == 0.0


@settings(deadline=None, max_examples=EXAMPLES)
@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8), st.integers(1, 9)), max_size=6),
)
def test_the_flow_is_that_of_the_linear_program(
    layers: int, drawn: list[tuple[int, int, int]]
) -> None:
    runs = [
        (ShardRange(start, min(start + length, layers)), float(speed))
        for start, length, speed in drawn
        if start < layers
    ]
    assert most_flow(runs, layers) == pytest.approx(_solved(runs, layers), abs=1e-6)


def _solved(runs: list[tuple[ShardRange, float]], layers: int) -> float:
    """Maximise T with a solver: its last variable, after what each Worker runs of each Layer."""
    pairs = [(index, layer) for index, (run, _) in enumerate(runs) for layer in run.layers]
    served = [[-float(other == layer) for _, other in pairs] + [1.0] for layer in range(layers)]
    spent = [[float(other == index) for other, _ in pairs] + [0.0] for index in range(len(runs))]
    limits = [0.0] * layers + [speed for _, speed in runs]
    solved = linprog([0.0] * len(pairs) + [-1.0], A_ub=served + spent, b_ub=limits)
    return -float(solved.fun)
