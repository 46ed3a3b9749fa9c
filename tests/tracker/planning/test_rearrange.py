from meshnet_common.protocol.messages import DirectiveKind
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.coverage import count_layers
from meshnet_tracker.planning.rearrange import Mover, steps_to_coverage
from tests.tracker.planning.meshes import GB, candidate, variant

Order = tuple[str, DirectiveKind, int, int]


def mover(name: str, capacity: int, run: tuple[int, int] | None = None) -> Mover:
    return Mover(candidate(name, capacity), ShardRange(*run) if run else None)


def steps(sizes: LayerSizes, *movers: Mover, uncovered: int = 1) -> list[Order] | None:
    ready = count_layers((m.run for m in movers if m.run is not None), sizes.layer_count)
    found = steps_to_coverage(sizes, movers, ready, uncovered)
    if found is None:
        return None
    return [(s.worker_id, s.kind, s.shard_range.start, s.shard_range.end) for s in found]


def test_a_joiner_takes_the_first_layers_over_from_who_cannot_hold_the_last() -> None:
    sizes = LayerSizes.of(variant(2, head_bytes=GB))
    joiner, holder = mover("joiner", 1), mover("holder", 2, (0, 1))
    assert steps(sizes, holder, joiner) == [("joiner", DirectiveKind.LOAD_SHARD, 0, 1)]
    relieved = steps(sizes, holder, mover("joiner", 1, (0, 1)))
    assert relieved == [("holder", DirectiveKind.DROP_SHARD, 0, 1)]


def test_nothing_is_rearranged_that_leaves_as_many_layers_uncovered() -> None:
    sizes = LayerSizes.of(variant(4))
    assert steps(sizes, mover("a", 2, (0, 2)), mover("b", 1, (2, 3))) is None


def test_nothing_is_begun_that_no_safe_way_ends() -> None:
    sizes = LayerSizes.of(variant(2, head_bytes=GB))
    assert steps(sizes, mover("a", 2, (0, 1)), mover("b", 0)) is None


def test_more_workers_than_a_few_are_left_as_they_are() -> None:
    sizes = LayerSizes.of(variant(8, head_bytes=GB))
    holders = [mover(f"{i}", 2 if i == 0 else 1, (i, i + 1)) for i in range(7)]
    assert steps(sizes, *holders, mover("joiner", 1)) is None
