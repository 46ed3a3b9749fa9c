import os
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.orders import Candidate
from meshnet_tracker.planning.score import (
    FAR_SECONDS,
    Run,
    Score,
    hops,
    score,
    score_of,
    sessions_that_fit,
)
from tests.tracker.planning.meshes import GB, candidate, variant

EXAMPLES = 2000 if os.environ.get("CI") else 150

SIZES = replace(LayerSizes.of(variant(4)), kv_bytes_per_layer=1_000)


def run(worker: Candidate, start: int, end: int) -> Run:
    return worker, ShardRange(start, end)


def lending(name: str, memory_gb: int, speed: float = 1.0, locality: str = "") -> Candidate:
    return replace(candidate(name, 4, speed=speed), memory_bytes=memory_gb * GB, locality=locality)


def test_fewer_uncovered_layers_come_before_everything() -> None:
    gap = score(SIZES, [run(candidate("a", 3, 99.0), 0, 3)])
    whole = score(SIZES, [run(candidate("a", 4, 0.1), 0, 4)])
    assert gap < whole


def test_of_as_many_uncovered_layers_the_shorter_gap_is_better() -> None:
    together = score(SIZES, [run(candidate("a", 2), 0, 2)])
    apart = score(SIZES, [run(candidate("a", 2), 1, 3)])
    assert together < apart


def test_a_second_worker_for_every_layer_is_worth_something() -> None:
    alone = score(SIZES, [run(candidate("a", 4, 2.0), 0, 4)])
    two = score(SIZES, [run(candidate("a", 4), 0, 4), run(candidate("b", 4), 0, 4)])
    assert alone < two


def test_more_tokens_per_second_come_before_the_time_of_one() -> None:
    even = score(SIZES, [run(candidate("a", 2), 0, 2), run(candidate("b", 2), 2, 4)])
    uneven = score(SIZES, [run(candidate("a", 3), 0, 3), run(candidate("b", 2), 3, 4)])
    assert even > uneven


def test_of_equal_flow_the_placement_without_hops_is_quicker() -> None:
    pool = [candidate("a", 4), candidate("b", 4)]
    copies = score(SIZES, [run(worker, 0, 4) for worker in pool])
    crossed = score(SIZES, [run(pool[0], 0, 4), run(pool[1], 0, 3)])
    assert copies > crossed


def test_sessions_fit_beside_the_weights_at_the_tightest_layers() -> None:
    runs = [run(lending("a", 4), 0, 2), run(lending("b", 3), 2, 4)]
    assert sessions_that_fit(SIZES, runs) == 1_000_000_000 / (2 * 1_000 * 1_000)
    assert sessions_that_fit(SIZES, [run(candidate("a", 4), 0, 4)]) is None


def test_memory_that_weights_take_holds_no_sessions() -> None:
    full = [run(lending("a", 2), 0, 2), run(lending("b", 2), 2, 4)]
    assert score(SIZES, full).worth == 0.0


def test_a_token_waits_longest_where_one_worker_is_alone_with_its_layers() -> None:
    row = [run(candidate(f"{layer}", 1), layer, layer + 1) for layer in range(4)]
    twice = [run(candidate(f"{layer}+", 1), layer, layer + 1) for layer in range(4)]
    assert score(SIZES, row).quickness < score(SIZES, row + twice).quickness


def test_going_to_another_locality_costs_time_each_way_and_throughput() -> None:
    def judged(where: str) -> Score:
        here, there = lending("a", 4, locality="x"), lending("b", 4, locality=where)
        return score(SIZES, [run(here, 0, 2), run(there, 2, 4)])

    assert judged("x").quickness - judged("y").quickness == pytest.approx(2 * FAR_SECONDS)
    assert judged("x").worth > 2 * judged("y").worth


def test_room_for_sessions_counts_beside_what_workers_can_compute() -> None:
    small = [run(lending("a", 4), 0, 3), run(lending("b", 4), 3, 4)]
    large = [run(lending("a", 9), 0, 3), run(lending("b", 9), 3, 4)]
    assert score(SIZES, small).worth < score(SIZES, large).worth


def test_where_many_ranges_begin_there_are_more_hops() -> None:
    pool = [candidate("a", 4), candidate("b", 4)]
    assert hops([run(pool[0], 0, 2), run(pool[1], 2, 4)], 4) == 2.0
    assert hops([run(pool[0], 0, 4), run(pool[1], 0, 4)], 4) == 1.0


@settings(deadline=None, max_examples=EXAMPLES)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 9)), max_size=6),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_runs_changes_nothing(
    drawn: list[tuple[int, int, int]], random: Random
) -> None:
    runs = [
        run(lending(f"{i}", 9, speed / 3, locality=str(i % 2)), start, min(4, start + length))
        for i, (start, length, speed) in enumerate(drawn)
    ]
    shuffled = list(runs)
    random.shuffle(shuffled)
    workers = {worker.worker_id: worker for worker, _ in runs}
    placed = {worker.worker_id: shard_range for worker, shard_range in shuffled}
    assert score(SIZES, shuffled) == score(SIZES, runs) == score_of(SIZES, workers, placed)
