from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.orders import Candidate
from meshnet_tracker.planning.score import Run, score, score_of, sessions_that_fit, token_seconds
from tests.tracker.planning.meshes import GB, candidate, variant

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


def test_a_second_worker_for_every_layer_comes_before_speed() -> None:
    alone = score(SIZES, [run(candidate("a", 4, 9.0), 0, 4)])
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
    assert score(SIZES, full).tokens_per_second == 0.0


def test_a_token_waits_longest_where_one_worker_is_alone_with_its_layers() -> None:
    alone = token_seconds(SIZES, [run(candidate("a", 4), 0, 4)])
    shared = token_seconds(SIZES, [run(candidate(name, 4), 0, 4) for name in "ab"])
    assert shared < alone


def test_going_to_another_locality_costs_time_each_way() -> None:
    def seconds(where: str) -> float:
        here, there = lending("a", 4, locality="x"), lending("b", 4, locality=where)
        return token_seconds(SIZES, [run(here, 0, 2), run(there, 2, 4)])

    assert seconds("y") - seconds("x") > 2 * 0.05


@settings(max_examples=200)
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
