from dataclasses import replace

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.soonest import Helper, Way, soonest


def helper(
    name: str, layers: int, speed: float = 1.0, run: ShardRange | None = None, released: int = 0
) -> Helper:
    return Helper(WorkerId(name), layers, speed, run=run, released_layers=released)


def found(layer_count: int, *helpers: Helper) -> Way:
    way = soonest(helpers, layer_count)
    assert way is not None
    return way


def test_layers_are_spread_over_lines_by_their_speeds() -> None:
    way = found(12, helper("a", 12, 1.0), helper("b", 12, 0.5))
    assert 8.0 <= way.seconds <= 8.1
    assert {name: sum(map(len, runs)) for name, runs in way.loads.items()} == {"a": 8, "b": 4}


def test_who_lies_beside_a_gap_goes_on_into_it() -> None:
    way = found(10, helper("a", 5, run=ShardRange(0, 4)), helper("b", 5, run=ShardRange(8, 10)))
    assert way.loads == {"a": [ShardRange(4, 6)], "b": [ShardRange(6, 8)]}


def test_a_run_is_given_back_where_its_worker_is_needed_elsewhere() -> None:
    full = helper("a", 0, run=ShardRange(3, 7), released=4)
    way = found(12, full, helper("b", 4, run=ShardRange(7, 12)))
    assert way.released == {"a"}
    assert way.loads == {"a": [ShardRange(0, 3)], "b": [ShardRange(3, 7)]}


def test_a_run_is_kept_where_giving_it_back_helps_little() -> None:
    kept = helper("a", 0, run=ShardRange(0, 4), released=4)
    assert found(8, kept, helper("b", 4)).released == frozenset()


def test_there_is_no_way_where_the_rooms_are_too_few() -> None:
    assert soonest([helper("a", 3), helper("b", 4)], 8) is None


def test_what_is_on_its_way_counts_when_it_is_there() -> None:
    loading = replace(
        helper("a", 0, run=ShardRange(0, 2)), coming=ShardRange(2, 10), delay_seconds=8.0
    )
    runs = [loading.run_at(seconds) for seconds in (0.0, 2.5, 8.0)]
    assert runs == [ShardRange(0, 2), ShardRange(0, 4), ShardRange(0, 10)]
    way = found(10, loading, helper("b", 4))
    assert way.loads == {"b": [ShardRange(6, 10)]}
    assert 4.0 <= way.seconds <= 4.1


def test_a_run_that_is_loaded_downward_grows_at_its_start() -> None:
    loading = replace(
        helper("a", 0, run=ShardRange(6, 8)), coming=ShardRange(2, 6), delay_seconds=4.0
    )
    assert loading.run_at(1.0) == ShardRange(5, 8)
    begun = replace(loading, run=None)
    assert (begun.run_at(0.0), begun.run_at(1.0)) == (None, ShardRange(2, 3))
