import os
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.orders import Candidate
from meshnet_tracker.planning.score import Run, score_of
from meshnet_tracker.planning.trial import may_be_tried, tokens_per_second, tried
from tests.tracker.planning.meshes import GB, candidate, variant

EXAMPLES = 2000 if os.environ.get("CI") else 100

SIZES = replace(LayerSizes.of(variant(4)), kv_bytes_per_layer=10_000)
SESSIONS_IN_A_GB = GB / (10_000 * 1_000)


def lending(name: str, memory_gb: int, speed: float = 100.0, locality: str = "") -> Candidate:
    """Build a Worker that runs prompts a hundred times as fast as single tokens."""
    return replace(
        candidate(name, 4, speed=speed),
        memory_bytes=memory_gb * GB,
        prefill_speed=100 * speed,
        locality=locality,
    )


def run(worker: Candidate, start: int, end: int) -> Run:
    return worker, ShardRange(start, end)


def test_only_workers_that_measured_prompts_and_lend_known_memory_are_tried() -> None:
    known = lending("a", 8)
    assert may_be_tried(SIZES, [known])
    assert not may_be_tried(replace(SIZES, kv_bytes_per_layer=0), [known])
    for unknown in (replace(known, prefill_speed=0.0), replace(known, memory_bytes=0)):
        assert not may_be_tried(SIZES, [known, unknown])


def test_a_busy_worker_gives_what_it_computes_and_reads_for_each_token() -> None:
    """Weights are read once for all, so that they hardly count where thousands take part."""
    worker = lending("a", 4_000)
    computed = 4 * 4 / worker.prefill_speed
    read = 4 / worker.speed * (10_000 * 1_000 / GB + 1 / 250)
    given = tokens_per_second(SIZES, [run(worker, 0, 4)])
    assert given == pytest.approx(1 / (computed + read), rel=0.05)


def test_few_sessions_wait_mostly_for_weights_to_be_read() -> None:
    few, more = (tokens_per_second(SIZES, [run(lending("a", gb), 0, 4)]) for gb in (5, 6))
    sessions = SESSIONS_IN_A_GB / 4
    assert few < sessions / (4 / 100)
    assert few < more < 2 * few


def test_who_is_slow_at_prompts_gives_less_however_quick_single_tokens_are() -> None:
    quick = lending("a", 40)
    slow = replace(quick, prefill_speed=quick.prefill_speed / 4)
    assert tokens_per_second(SIZES, [run(slow, 0, 4)]) < tokens_per_second(
        SIZES, [run(quick, 0, 4)]
    )


def test_where_weights_leave_no_room_or_layers_are_missing_there_are_no_tokens() -> None:
    assert tokens_per_second(SIZES, [run(lending("a", 4), 0, 4)]) == 0.0
    assert tokens_per_second(SIZES, [run(lending("a", 9), 0, 3)]) == 0.0


def test_in_a_row_sessions_wait_for_each_others_prompts() -> None:
    """The same devices, as long steps in all, and room for as many Sessions: but one at a time."""
    halves = [lending("a", 22), lending("b", 22)]
    row = [run(halves[0], 0, 2), run(halves[1], 2, 4)]
    sides = [run(lending("a", 24), 0, 4), run(lending("b", 24), 0, 4)]
    assert tokens_per_second(SIZES, row) < tokens_per_second(SIZES, sides)


def test_more_sessions_fit_where_others_run_the_layers_of_a_tight_worker() -> None:
    tight, roomy = lending("a", 5), lending("b", 40, speed=400.0)
    alone = tokens_per_second(SIZES, [run(tight, 0, 4)])
    helped = tokens_per_second(SIZES, [run(tight, 0, 4), run(roomy, 1, 4)])
    assert helped > 2 * alone


def test_a_far_way_costs_more_than_a_near_one() -> None:
    def given_by(where: str) -> float:
        here, there = lending("a", 8, locality="x"), lending("b", 8, locality=where)
        return tokens_per_second(SIZES, [run(here, 0, 2), run(there, 2, 4)])

    assert given_by("y") < given_by("x")


def test_what_is_tried_is_judged_as_ever_but_for_its_tokens() -> None:
    worker = lending("a", 9)
    workers = {worker.worker_id: worker}
    for placed in ({worker.worker_id: ShardRange(0, 3)}, {worker.worker_id: ShardRange(0, 4)}):
        judged, estimated = tried(SIZES, workers, placed), score_of(SIZES, workers, placed)
        assert replace(judged, worth=estimated.worth) == estimated


@settings(deadline=None, max_examples=EXAMPLES)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 9), st.integers(1, 60)),
        max_size=7,
    ),
    st.randoms(use_true_random=False),
)
def test_nobody_gives_more_than_it_computes_and_the_order_changes_nothing(
    drawn: list[tuple[int, int, int, int]], random: Random
) -> None:
    runs = [
        run(lending(f"{i}", gb, 100.0 * speed, str(i % 2)), start, min(4, start + length))
        for i, (start, length, speed, gb) in enumerate(drawn)
    ]
    workers = {worker.worker_id: worker for worker, _ in runs}
    shuffled = list(runs)
    random.shuffle(shuffled)
    judged = tried(SIZES, workers, {worker.worker_id: each for worker, each in runs})
    assert judged == tried(SIZES, workers, {worker.worker_id: each for worker, each in shuffled})
    given = tokens_per_second(SIZES, sorted(runs, key=lambda each: each[0].worker_id))
    most = sum(worker.prefill_speed for worker, _ in runs) / (4 * 4)
    assert 0.0 <= given <= 1.05 * most
