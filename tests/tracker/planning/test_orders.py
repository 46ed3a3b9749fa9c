from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.orders import Candidate, fewest_order, fill, orders
from tests.tracker.planning.meshes import GB, candidate, variant


def names(ordered: list[Candidate] | None) -> list[str] | None:
    return None if ordered is None else [str(worker.worker_id) for worker in ordered]


def test_the_largest_are_tried_first_and_others_at_the_ends_after_that() -> None:
    sizes = LayerSizes.of(variant(6, embedding_bytes=GB, head_bytes=GB))
    pool = [candidate("a", 4), candidate("b", 3), candidate("c", 2)]
    tried = [names(list(ordered)) for ordered in orders(sizes, pool)]
    assert tried[0] == ["a", "b", "c"]
    assert ["b", "a", "c"] in tried


def test_who_is_bound_to_layer_zero_leads_every_order() -> None:
    sizes = LayerSizes.of(variant(6))
    pool = [candidate("a", 4), candidate("b", 3), candidate("head", 2, bound=True)]
    assert all(ordered[0].worker_id == "head" for ordered in orders(sizes, pool))


def test_workers_are_filled_completely_and_those_that_fit_nothing_are_left_out() -> None:
    sizes = LayerSizes.of(variant(6, embedding_bytes=2 * GB))
    placed = fill(sizes, sizes.whole, [candidate("small", 2), candidate("a", 6)])
    assert placed == {"a": ShardRange(0, 4)}


def test_uneven_layers_are_covered_in_the_one_order_that_fits() -> None:
    sizes = LayerSizes.of(variant([3 * GB, 5 * GB, 4 * GB]))
    pool = [candidate("a", 5), candidate("b", 4), candidate("c", 3)]
    assert names(fewest_order(sizes, sizes.whole, pool)) == ["c", "a", "b"]
    assert fewest_order(sizes, sizes.whole, pool[:2]) is None


def test_too_many_sets_of_workers_are_not_looked_at() -> None:
    sizes = LayerSizes.of(variant([1 * GB, 2 * GB] * 40))
    pool = [candidate(f"{size}", size) for size in range(2, 14)]
    assert fewest_order(sizes, sizes.whole, pool) is None
