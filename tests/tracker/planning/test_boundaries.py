from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.boundaries import cover_and_lift, widths
from meshnet_tracker.planning.capacity import LayerSizes
from tests.tracker.planning.meshes import GB, candidate, variant


def sizes_of(layers: int, embedding_bytes: int = 0) -> LayerSizes:
    return LayerSizes.of(variant(layers, embedding_bytes=embedding_bytes))


def test_all_layers_are_covered_before_any_is_lifted() -> None:
    pool = [candidate("a", 4, 3.0), candidate("b", 4, 2.0), candidate("c", 4)]
    placed = cover_and_lift(sizes_of(8), pool, ShardRange(0, 8), 4)
    assert placed == {"a": ShardRange(0, 4), "b": ShardRange(4, 8), "c": ShardRange(4, 8)}


def test_everybody_begins_and_ends_at_a_common_boundary() -> None:
    pool = [candidate("a", 7), candidate("b", 5), candidate("c", 3)]
    placed = cover_and_lift(sizes_of(12), pool, ShardRange(0, 12), 4)
    assert placed == {"a": ShardRange(0, 4), "b": ShardRange(4, 8)}


def test_the_last_boundary_is_the_end_wherever_it_lies() -> None:
    pool = [candidate("a", 4), candidate("b", 2)]
    placed = cover_and_lift(sizes_of(6), pool, ShardRange(0, 6), 4)
    assert placed == {"a": ShardRange(0, 4), "b": ShardRange(4, 6)}


def test_a_stretch_is_filled_by_itself() -> None:
    placed = cover_and_lift(sizes_of(12), [candidate("a", 12)], ShardRange(4, 8), 4)
    assert placed == {"a": ShardRange(4, 8)}


def test_who_is_bound_to_layer_zero_is_placed_there_or_not_at_all() -> None:
    bound = [candidate("head", 4, bound=True)]
    assert cover_and_lift(sizes_of(8), bound, ShardRange(0, 8), 2) == {"head": ShardRange(0, 4)}
    assert cover_and_lift(sizes_of(8), bound, ShardRange(4, 8), 2) == {}


def test_embeddings_take_room_where_they_belong() -> None:
    placed = cover_and_lift(sizes_of(8, 2 * GB), [candidate("a", 4)], ShardRange(0, 8), 2)
    assert placed == {"a": ShardRange(2, 6)}


def test_widths_come_from_the_workers_own_capacities() -> None:
    tried = widths(sizes_of(80), [candidate("a", 12), candidate("b", 7)])
    assert {1, 2, 3, 4, 6, 7, 12} <= set(tried)
    assert widths(sizes_of(2), [candidate("a", 12)]) == [1, 2]
