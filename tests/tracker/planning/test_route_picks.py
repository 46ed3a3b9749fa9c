from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.route_index import VariantIndex
from meshnet_tracker.planning.route_picks import (
    FEW_SHARDS,
    MOST_NEAR,
    MOST_OF_ROW,
    MOST_PICKS,
    Taste,
    picks,
)
from meshnet_tracker.planning.snapshot import WorkerView
from tests.tracker.planning.meshes import KEY, held, worker

ALL = ShardRange(0, 8)
PLAIN = Taste(frozenset(), None, "", "", 0)
MANY = FEW_SHARDS + 20


def picked(*workers: WorkerView, taste: Taste = PLAIN, layers: ShardRange = ALL) -> list[str]:
    index = VariantIndex(KEY)
    for each in workers:
        index.put(each, 0)
    return [shard.worker_id for shard in picks(index, layers, taste)]


def row(count: int, start: int = 0, end: int = 8, name: str = "w") -> list[WorkerView]:
    return [worker(f"{name}{n:03}", 8, held(start, end)) for n in range(count)]


def test_of_few_workers_all_are_looked_at() -> None:
    assert len(picked(*row(FEW_SHARDS))) == FEW_SHARDS


def test_of_many_equal_ones_a_few_are_in_turn() -> None:
    chosen = Counter[str]()
    for salt in range(400):
        names = picked(*row(MANY), taste=replace(PLAIN, tie_salt=f"{salt}"))
        assert len(names) == MOST_OF_ROW
        chosen.update(names)
    assert len(chosen) == MANY
    assert max(chosen.values()) < 4 * min(chosen.values())


def test_the_quickest_of_a_row_comes_first() -> None:
    quick = worker("quick", 8, held(0, 8), speed=2.0)
    assert "quick" in picked(*row(MANY), quick)


def test_who_is_excluded_is_not_picked_and_the_next_is() -> None:
    exclude = frozenset(WorkerId(f"w{n:03}") for n in range(MANY - 1))
    assert picked(*row(MANY), taste=replace(PLAIN, exclude=exclude)) == [f"w{MANY - 1:03}"]


def test_who_has_no_room_is_picked_only_where_nobody_has() -> None:
    full = [replace(each, kv_bytes_free=7) for each in row(MANY, name="full")]
    roomy = replace(worker("z", 8, held(0, 8), speed=0.1), kv_bytes_free=8)
    taste = replace(PLAIN, kv_bytes_per_layer=1)
    assert picked(*full, roomy, taste=taste)[-1] == "z"
    assert len(picked(*full, taste=taste)) == MOST_OF_ROW


def test_the_workers_of_a_chat_come_first() -> None:
    def first(affinity: str, pool: list[WorkerView]) -> set[str]:
        taste = replace(PLAIN, affinity=affinity, tie_salt="any")
        return set(picked(*pool, taste=taste))

    pool = row(MANY)
    chosen = first("talk", pool)
    assert chosen != first("another talk", pool)
    left = [each for each in pool if each.worker_id not in chosen]
    kept = next(each for each in pool if each.worker_id in chosen)
    assert kept.worker_id in first("talk", [*left, kept])


def test_a_head_worker_that_is_asked_for_is_among_them() -> None:
    slow = worker("slow", 8, held(0, 8), speed=0.1)
    taste = replace(PLAIN, head=WorkerId("slow"))
    assert "slow" in picked(*row(MANY), slow, taste=taste)
    excluding = replace(taste, exclude=frozenset({WorkerId("slow")}))
    assert "slow" not in picked(*row(MANY), slow, taste=excluding)


def test_peers_that_are_near_to_a_pick_are_looked_at_too() -> None:
    quick = replace(
        worker("quick", 8, held(0, 4), speed=9.0), round_trips=((WorkerId("w030"), 0.001),)
    )
    assert "w030" in picked(quick, *row(MANY, 4, 8))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 39), st.integers(1, 40), st.integers(1, 9)),
        min_size=1,
        max_size=80,
    ),
    st.sets(st.integers(0, 79)),
    st.sampled_from(("", "talk")),
)
def test_whatever_anybody_holds_some_pick_holds_and_picks_are_few(
    drawn: list[tuple[int, int, int]], excluded: set[int], affinity: str
) -> None:
    pool = [
        worker(f"w{n}", 0, held(start, min(40, start + length)), speed=float(speed))
        for n, (start, length, speed) in enumerate(drawn)
    ]
    exclude = frozenset(WorkerId(f"w{n}") for n in excluded)
    names = set(
        picked(*pool, taste=Taste(exclude, None, "s", affinity, 0), layers=ShardRange(0, 40))
    )
    able = [each for each in pool if each.worker_id not in exclude]
    chosen = [each for each in pool if each.worker_id in names]
    assert not names & exclude
    if _is_held(able):
        assert _is_held(chosen)
    # A chain of all Layers is no longer than the Layers, and most are much shorter.
    assert len(names) <= MOST_PICKS + MOST_NEAR + 40


def _is_held(workers: list[WorkerView]) -> bool:
    layers = {layer for each in workers for layer in each.held[0].shard_range.layers}
    return len(layers) == 40
