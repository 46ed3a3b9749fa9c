import pytest

from bench.placement.baselines import balanced_ring, memory_ring
from bench.placement.flow import partial_flow, upper_bound, whole_flow
from bench.placement.instances import load
from meshnet_common.shard_range import ShardRange
from tests.bench.placement.meshes import instance, placed

PUBLISHED_FLOWS = (
    ("q10", "helix_milp", 286.6),
    ("single24", "helix_milp", 1289.6),
    ("single24", "swarm", 757.9),
    ("geo24", "helix_milp", 1212.2),
    ("het42", "helix_milp", 4137.5),
    ("het42", "swarm", 4892.2),
)


@pytest.mark.parametrize(("name", "row", "flow"), PUBLISHED_FLOWS)
def test_a_published_placement_has_its_published_flow(name: str, row: str, flow: float) -> None:
    published = load(name)
    assert whole_flow(published, published.placements[row]) == pytest.approx(flow, abs=0.05)


@pytest.mark.parametrize(
    ("name", "flow"), [("q10", 286.6), ("single24", 2045.6), ("het42", 5441.1)]
)
def test_the_balanced_ring_has_its_published_flow(name: str, flow: float) -> None:
    published = load(name)
    assert whole_flow(published, balanced_ring(published)) == pytest.approx(flow, abs=0.05)


@pytest.mark.parametrize(
    ("name", "flow"), [("q10", 189.1), ("single24", 1476.1), ("het42", 4239.1)]
)
def test_the_ring_by_memory_has_its_published_flow(name: str, flow: float) -> None:
    published = load(name)
    assert whole_flow(published, memory_ring(published)) == pytest.approx(flow, abs=0.05)


@pytest.mark.parametrize(
    ("name", "bound"), [("q10", 364.5), ("single24", 2803.9), ("geo24", 2803.9), ("het42", 7104.3)]
)
def test_the_upper_bound_is_the_published_one(name: str, bound: float) -> None:
    assert upper_bound(load(name)) == pytest.approx(bound, abs=0.05)


def test_two_workers_with_halves_carry_what_the_slower_one_does() -> None:
    mesh = instance(4, {"a": (100.0, 50.0), "b": (60.0, 30.0)})
    runs = placed(a=(0, 2), b=(2, 4))
    assert partial_flow(mesh, runs) == pytest.approx(30.0)
    assert whole_flow(mesh, runs) == pytest.approx(30.0)


def test_with_partial_entry_overlapping_runs_share_a_layer() -> None:
    # a: 120 layer-tokens/s over Layers 0 to 2, b as many over 2 and 3: Layer 2 evens them out.
    mesh = instance(4, {"a": (40.0, 40.0, 40.0), "b": (60.0, 60.0)})
    runs = placed(a=(0, 3), b=(2, 4))
    assert partial_flow(mesh, runs) == pytest.approx(60.0)
    assert whole_flow(mesh, runs) == 0.0


def test_a_gap_carries_nothing() -> None:
    mesh = instance(4, {"a": (40.0, 40.0), "b": (60.0,)})
    assert partial_flow(mesh, placed(a=(0, 2), b=(3, 4))) == 0.0


def test_a_link_carries_no_more_than_its_bandwidth() -> None:
    mesh = instance(2, {"a": (1000.0,), "b": (1000.0,)}, bytes_per_second=100 * 1024)
    assert whole_flow(mesh, placed(a=(0, 1), b=(1, 2))) == pytest.approx(100.0)


def test_no_placement_flows_more_than_the_bound() -> None:
    mesh = instance(2, {"a": (100.0, 40.0), "b": (100.0, 40.0)})
    best = max(
        partial_flow(mesh, placed(a=a, b=b))
        for a in ((0, 1), (0, 2), (1, 2))
        for b in ((0, 1), (0, 2), (1, 2))
    )
    assert best <= upper_bound(mesh) == pytest.approx(100.0)
    assert ShardRange(0, 1) in placed(a=(0, 1)).values()
