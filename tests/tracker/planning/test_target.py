import os
from dataclasses import replace
from itertools import product
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.coverage import count_layers
from meshnet_tracker.planning.flow import most_flow
from meshnet_tracker.planning.orders import Candidate, Placement
from meshnet_tracker.planning.placement import fresh_placement
from meshnet_tracker.planning.score import score_of
from meshnet_tracker.planning.target import MOST_SEARCHED, target_placement
from meshnet_tracker.planning.trial import tried
from tests.tracker.planning.meshes import GB, candidate, variant

EXAMPLES = 2000 if os.environ.get("CI") else 60


def measured(name: str, *turns: float, locality: str = "", spare: int = 2) -> Candidate:
    """Build a Worker that turns so often a second with 1, 2, ... Layers, and has memory to spare.

    It is `spare` times what it may fill with weights.
    """
    return replace(
        candidate(name, len(turns)),
        layer_rates=tuple(layers * each for layers, each in enumerate(turns, 1)),
        locality=locality,
        memory_bytes=spare * len(turns) * GB,
    )


def ranges(placed: Placement) -> dict[str, tuple[int, int]]:
    return {str(name): (each.start, each.end) for name, each in placed.items()}


def test_without_measured_rates_whole_copies_are_the_target() -> None:
    sizes = LayerSizes.of(variant(70))
    pool = [candidate(f"{index}", n) for index, n in enumerate((40, 40, 20, 20, 10, 10))]
    assert target_placement(sizes, pool) == fresh_placement(sizes, pool)


def test_who_is_faster_with_fewer_layers_holds_fewer() -> None:
    sizes = LayerSizes.of(variant(6))
    pool = [measured(name, 90.0, 40.0, 20.0, 1.0) for name in "abc"]
    placed = target_placement(sizes, pool)
    assert sorted(ranges(placed).values()) == [(0, 2), (2, 4), (4, 6)]


def test_a_worker_that_holds_everything_is_not_split_for_the_sake_of_it() -> None:
    sizes = LayerSizes.of(variant(3))
    whole = [measured(name, 9.0, 4.5, 3.0) for name in "ab"]
    assert set(ranges(target_placement(sizes, whole)).values()) == {(0, 3)}


def test_each_home_holds_consecutive_layers() -> None:
    sizes = LayerSizes.of(variant(8))
    homes = [
        measured(f"{home}{index}", 9.0, 4.5, locality=home) for home in "xy" for index in range(2)
    ]
    placed = ranges(target_placement(sizes, homes))
    firsts = sorted(start for name, (start, _) in placed.items() if name.startswith("x"))
    assert sorted(placed.values()) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert firsts in ([0, 2], [4, 6])


def test_one_locality_begins_for_two_that_can_each_do_the_rest() -> None:
    sizes = replace(LayerSizes.of(variant(6)), kv_bytes_per_layer=1_000)
    pool = [measured("a", 9.0, 4.5, locality="a")]
    pool += [measured(name, 9.0, 4.5, 3.0, 2.2, locality=name) for name in "bc"]
    placed = ranges(target_placement(sizes, pool))
    assert placed["b"] == placed["c"]
    assert len({placed["a"], placed["b"]}) == 2


def test_of_few_combinations_every_one_is_looked_at() -> None:
    sizes = replace(LayerSizes.of(variant(3)), kv_bytes_per_layer=1_000)
    pool = [measured("a", 9.0, 4.5), measured("b", 7.0, 2.0, 1.5)]
    workers = {worker.worker_id: worker for worker in pool}
    every = [
        {pool[0].worker_id: ShardRange(a, a + la), pool[1].worker_id: ShardRange(b, b + lb)}
        for la in (1, 2)
        for a in range(4 - la)
        for lb in (1, 2, 3)
        for b in range(4 - lb)
    ]
    best = max(score_of(sizes, workers, placed) for placed in every)
    assert score_of(sizes, workers, target_placement(sizes, pool)) >= best


def test_where_prompts_were_measured_the_best_few_are_tried_out() -> None:
    """The rates by Layers say that both are alike; but one is slow at prompts."""
    sizes = replace(LayerSizes.of(variant(2)), kv_bytes_per_layer=1_000)
    pool = [
        replace(measured(name, 9.0, 4.5), speed=9.0, prefill_speed=speed)
        for name, speed in (("quick", 900.0), ("slow", 30.0))
    ]
    workers = {worker.worker_id: worker for worker in pool}
    runs = [ShardRange(0, 1), ShardRange(1, 2), ShardRange(0, 2)]
    every = [dict(zip(workers, pair, strict=True)) for pair in product(runs, repeat=2)]
    best = max(tried(sizes, workers, placed) for placed in every)
    assert tried(sizes, workers, target_placement(sizes, pool)) == best


def test_beyond_what_can_be_searched_there_are_whole_copies() -> None:
    sizes = LayerSizes.of(variant(4))
    pool = [measured(f"{index}", 9.0, 1.0) for index in range(MOST_SEARCHED + 1)]
    assert target_placement(sizes, pool) == fresh_placement(sizes, pool)


@st.composite
def pools(draw: st.DrawFn) -> list[Candidate]:
    pool = []
    for index in range(draw(st.integers(1, 4))):
        turns = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
        locality = draw(st.sampled_from("xxy"))
        pool.append(measured(f"w{index}", *map(float, turns), locality=locality))
    return pool


@settings(deadline=None, max_examples=EXAMPLES)
@given(st.integers(1, 6), pools(), st.randoms(use_true_random=False))
def test_a_target_fits_covers_what_can_be_covered_and_is_no_worse_than_copies(
    layers: int, pool: list[Candidate], random: Random
) -> None:
    sizes = replace(LayerSizes.of(variant(layers)), kv_bytes_per_layer=1_000)
    placed = target_placement(sizes, pool)
    workers = {worker.worker_id: worker for worker in pool}
    assert all(sizes.range_bytes(placed[name]) <= workers[name].budget_bytes for name in placed)
    counts = count_layers(placed.values(), layers)
    if sum(len(worker.layer_rates) for worker in pool) >= layers:
        assert min(counts) >= 1
    copies = fresh_placement(sizes, pool)
    assert score_of(sizes, workers, placed) >= score_of(sizes, workers, copies)
    random.shuffle(pool)
    assert target_placement(sizes, pool) == placed


def test_a_published_pool_reaches_its_proven_best_flow() -> None:
    """Ten machines of two kinds, 60 Layers; with measured rates that do not only fall."""
    large = (2485.5, 1145.0, 763.5, 481.0, 384.9, 286.6, 245.7, 189.1, 168.2, 212.6, 193.5)
    small = (1988.0, 901.9, 539.0, 404.3, 285.3, 331.3, 231.1)
    sizes = LayerSizes.of(variant(60))
    pool = [measured(f"l{index}", *large) for index in range(4)]
    pool += [measured(f"s{index}", *small) for index in range(6)]
    placed = target_placement(sizes, pool)
    workers = {worker.worker_id: worker for worker in pool}
    runs = ((run, workers[name].rate(len(run))) for name, run in placed.items())
    assert most_flow(runs, 60) >= 286.587
