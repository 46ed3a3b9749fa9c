import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import (
    LayerSizes,
    held_bytes,
    max_layers,
    smallest_layers,
    usable_bytes,
)
from meshnet_tracker.planning.snapshot import PlannerPolicy
from tests.tracker.planning.meshes import GB, KEY, held, preset, variant


@pytest.mark.parametrize(
    ("vram_gb", "with_eight_gb_kept", "with_a_fifth_kept"),
    [(128, 27, 23), (80, 16, 14)],
)
def test_layers_are_what_is_left_after_the_headroom(
    vram_gb: int, with_eight_gb_kept: int, with_a_fifth_kept: int
) -> None:
    layer_bytes = 4_375_000_000
    absolute = usable_bytes(vram_gb * GB, PlannerPolicy(headroom_bytes=8 * GB))
    shared = usable_bytes(vram_gb * GB, PlannerPolicy())
    assert max_layers(absolute, layer_bytes) == with_eight_gb_kept
    assert max_layers(shared, layer_bytes) == with_a_fifth_kept


def test_a_headroom_larger_than_the_budget_leaves_nothing() -> None:
    assert usable_bytes(GB, PlannerPolicy(headroom_bytes=2 * GB)) == 0
    assert max_layers(-5, GB) == 0


def test_embeddings_count_at_the_first_layer_and_the_output_head_at_the_last() -> None:
    sizes = LayerSizes.of(variant(4, embedding_bytes=3 * GB, head_bytes=2 * GB))
    assert sizes.range_bytes(ShardRange(0, 2)) == 5 * GB
    assert sizes.range_bytes(ShardRange(1, 3)) == 2 * GB
    assert sizes.range_bytes(ShardRange(2, 4)) == 4 * GB
    assert sizes.range_bytes(sizes.whole) == 9 * GB


def test_the_last_layer_is_left_out_where_only_the_output_head_does_not_fit() -> None:
    sizes = LayerSizes.of(variant(4, head_bytes=2 * GB))
    assert sizes.end_within(1, 4, 4 * GB) == 3
    assert sizes.end_within(1, 4, 5 * GB) == 4


def test_the_first_layer_is_left_out_where_only_the_embeddings_do_not_fit() -> None:
    sizes = LayerSizes.of(variant(4, embedding_bytes=2 * GB))
    assert sizes.start_within(3, 0, 4 * GB) == 1
    assert sizes.start_within(3, 0, 5 * GB) == 0


def test_mirrored_sizes_count_from_the_other_end() -> None:
    sizes = LayerSizes.of(variant([1, 2, 3], embedding_bytes=10, head_bytes=20))
    assert sizes.mirrored().range_bytes(ShardRange(0, 1)) == sizes.range_bytes(ShardRange(2, 3))
    assert sizes.mirrored().mirrored() == sizes


@settings(deadline=None, max_examples=100)
@given(
    layers=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    embedding_bytes=st.integers(0, 6),
    head_bytes=st.integers(0, 6),
    budget=st.integers(0, 40),
    data=st.data(),
)
def test_what_fits_is_the_longest_run_within_the_budget(
    layers: list[int], embedding_bytes: int, head_bytes: int, budget: int, data: st.DataObject
) -> None:
    sizes = LayerSizes.of(variant(layers, embedding_bytes=embedding_bytes, head_bytes=head_bytes))
    position = data.draw(st.integers(0, len(layers)))
    ends = [
        end
        for end in range(position, len(layers) + 1)
        if sizes.range_bytes_of(position, end) <= budget
    ]
    starts = [
        start for start in range(position + 1) if sizes.range_bytes_of(start, position) <= budget
    ]
    assert sizes.end_within(position, len(layers), budget) == max(ends)
    assert sizes.start_within(position, 0, budget) == min(starts)


def test_of_each_quantization_the_smallest_layer_is_known() -> None:
    served = [preset(variant([4, 3]), variant([2, 2], "int8"))]
    assert smallest_layers(served) == {"nf4": 3, "int8": 2}
    assert smallest_layers(()) == {}


def test_shards_of_a_variant_that_is_served_no_more_have_no_known_size() -> None:
    sizes = {KEY: LayerSizes.of(variant(4, embedding_bytes=GB))}
    assert held_bytes([held(0, 2), held(3, 4)], sizes) == 4 * GB
    assert held_bytes([held(0, 2)], {}) is None
