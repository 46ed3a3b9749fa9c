import pytest

from meshnet_common.protocol.messages import CoverageRow
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.coverage import (
    CoverageMap,
    UnknownVariantError,
    count_layers,
    planned_coverage,
    routable_coverage,
)
from meshnet_tracker.planning.snapshot import Holding, VariantKey
from tests.tracker.planning.meshes import KEY, held, mesh, worker


def row(start: int, end: int, count: int) -> CoverageRow:
    return CoverageRow(start_layer=start, end_layer=end, worker_count=count)


def test_rows_are_sorted_runs_of_equal_replicas_and_a_gap_counts_zero() -> None:
    snapshot = mesh(10, worker("a", 6, held(0, 6)), worker("b", 4, held(4, 8)))
    coverage = routable_coverage(snapshot, KEY)
    assert coverage.rows() == (row(0, 4, 1), row(4, 6, 2), row(6, 8, 1), row(8, 10, 0))
    assert coverage.gaps() == (ShardRange(8, 10),)
    assert coverage.missing_layers == (8, 9)
    assert not coverage.servable


def test_a_chain_of_overlapping_shards_is_servable() -> None:
    snapshot = mesh(10, worker("a", 6, held(0, 6)), worker("b", 6, held(4, 10)))
    coverage = routable_coverage(snapshot, KEY)
    assert coverage.servable
    assert coverage.replicas == 1
    assert coverage.longest_gap() is None


@pytest.mark.parametrize(
    ("holding", "routable", "planned"),
    [
        (Holding.ORDERED, 0, 1),
        (Holding.LOADING, 0, 1),
        (Holding.READY, 1, 1),
        (Holding.DRAINING, 0, 0),
    ],
)
def test_routes_count_ready_shards_and_placement_also_what_is_coming(
    holding: Holding, routable: int, planned: int
) -> None:
    snapshot = mesh(4, worker("a", 4, held(0, 4, holding)))
    assert routable_coverage(snapshot, KEY).counts == (routable,) * 4
    assert planned_coverage(snapshot, KEY).counts == (planned,) * 4


def test_shards_of_other_variants_do_not_count() -> None:
    snapshot = mesh(4, worker("a", 4, held(0, 4, key=VariantKey("llama", "int8"))))
    assert routable_coverage(snapshot, KEY).counts == (0,) * 4


def test_shards_of_one_worker_that_touch_count_once() -> None:
    snapshot = mesh(4, worker("a", 4, held(0, 2), held(2, 4), held(1, 3)))
    assert routable_coverage(snapshot, KEY).counts == (1,) * 4


def test_the_longest_gap_is_the_coverage_gap() -> None:
    assert CoverageMap((0, 1, 0, 0, 1, 0)).longest_gap() == ShardRange(2, 4)


def test_layers_beyond_the_variant_are_not_counted() -> None:
    assert count_layers([ShardRange(1, 9), ShardRange(5, 9)], 3) == [0, 1, 1]


def test_a_variant_that_the_mesh_does_not_serve_is_an_error() -> None:
    with pytest.raises(UnknownVariantError, match="llama int4"):
        routable_coverage(mesh(4), VariantKey("llama", "int4"))
