import pytest

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.flow import changed_flows, is_better, layer_flows


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
