import os
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.orders import Candidate
from meshnet_tracker.planning.shares import balanced_counts, even_turns, most_at, water_fill
from tests.tracker.planning.meshes import candidate, variant

EXAMPLES = 2000 if os.environ.get("CI") else 150


def measured(name: str, *turns: float) -> Candidate:
    """Build a Worker that turns so often a second when it holds 1, 2, ... Layers."""
    rates = tuple(layers * each for layers, each in enumerate(turns, 1))
    return replace(candidate(name, len(turns)), layer_rates=rates)


def test_water_filling_keeps_the_slowest_turn_short() -> None:
    assert water_fill([10, 10], [1.0, 3.0], 8) == [2, 6]
    assert water_fill([10, 4], [1.0, 3.0], 8) == [4, 4]
    assert water_fill([3, 4], [1.0, 3.0], 8) is None


@settings(deadline=None, max_examples=EXAMPLES)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from((0.1, 1.0, 2.0, 3.0)) | st.floats(0.01, 100)),
        min_size=1,
        max_size=12,
    ).filter(lambda pool: any(room for room, _ in pool)),
    st.data(),
)
def test_each_layer_goes_to_whom_the_slowest_turn_stays_shortest_with(
    pool: list[tuple[int, float]], data: st.DataObject
) -> None:
    rooms, speeds = [room for room, _ in pool], [speed for _, speed in pool]
    layers = data.draw(st.integers(1, sum(rooms)))
    turns = sorted(
        (count / speed, index)
        for index, (room, speed) in enumerate(pool)
        for count in range(1, room + 1)
    )
    takers = [index for _, index in turns[:layers]]
    assert water_fill(rooms, speeds, layers) == [takers.count(n) for n in range(len(pool))]


def test_a_worker_too_slow_for_a_layer_gets_none() -> None:
    ordered = [candidate("a", 10, 100.0), candidate("b", 10, 1.0)]
    sizes = LayerSizes.of(variant(5))
    assert balanced_counts(sizes, ShardRange(0, 5), ordered) == [5, 0]


def test_a_worker_holds_as_many_layers_as_keep_the_pace() -> None:
    assert most_at([9.0, 5.0, 3.0], 4.0) == 2
    assert most_at([9.0, 3.0, 5.0], 4.0) == 3
    assert most_at([3.0], 4.0) == 0


def test_who_is_quicker_with_fewer_layers_gets_fewer() -> None:
    full = measured("full", 9.0, 4.0, 1.0)
    steady = measured("steady", 9.0, 6.0, 4.0, 3.0)
    sizes = LayerSizes.of(variant(5))
    assert balanced_counts(sizes, ShardRange(0, 5), [full, steady]) == [2, 3]


def test_what_is_too_much_is_given_back_by_the_slowest() -> None:
    pool = [measured("a", 9.0, 5.0), measured("b", 9.0, 5.0, 4.0)]
    assert even_turns([2, 3], pool, 4) == [2, 2]


@settings(deadline=None, max_examples=EXAMPLES)
@given(
    st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=6), min_size=1, max_size=4),
    st.data(),
)
def test_no_other_split_has_a_quicker_slowest_turn(
    tables: list[list[int]], data: st.DataObject
) -> None:
    tables = [sorted(table, reverse=True) for table in tables]
    pool = [measured(f"{i}", *map(float, table)) for i, table in enumerate(tables)]
    layers = data.draw(st.integers(1, sum(map(len, tables))))
    counts = even_turns([len(table) for table in tables], pool, layers)
    assert counts is not None
    assert sum(counts) == layers
    slowest = min(table[n - 1] for table, n in zip(tables, counts, strict=True) if n)
    quicker = sum(sum(turns > slowest for turns in table) for table in tables)
    assert quicker < layers
