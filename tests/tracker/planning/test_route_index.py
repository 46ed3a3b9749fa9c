from dataclasses import replace

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.route_index import VariantIndex
from meshnet_tracker.planning.snapshot import Holding, WorkerView
from tests.tracker.planning.meshes import KEY, held, worker


def indexed(*workers: WorkerView) -> VariantIndex:
    index = VariantIndex(KEY)
    for each in workers:
        index.put(each, 0)
    return index


def shown(index: VariantIndex) -> list[list[str]]:
    return [[one.worker_id for one in row] for row in index.rows()]


def test_a_row_is_equal_ranges_with_the_quickest_first() -> None:
    index = indexed(
        worker("b", 4, held(4, 8)),
        worker("a", 4, held(4, 8), speed=0.5),
        worker("c", 4, held(4, 8), speed=9.0),
        worker("d", 4, held(0, 4)),
    )
    assert shown(index) == [["d"], ["c", "b", "a"]]


def test_load_that_is_reported_or_noted_takes_a_share_of_the_speed() -> None:
    index = indexed(replace(worker("a", 4, held(0, 4), speed=2.0, sessions=2), queued=1))
    index.put(worker("b", 4, held(0, 4), speed=2.0, sessions=2), 3)
    index.put(worker("c", 4, held(0, 4), speed=2.0, sessions=2), -9)
    seconds = {one.worker_id: one.seconds for one in index.rows()[0]}
    assert seconds == {"a": 2.0, "b": 3.0, "c": 0.5}


def test_a_speed_that_is_known_for_so_many_layers_counts() -> None:
    rates = (10.0, 4.0, 2.0)
    index = indexed(
        replace(worker("a", 4, held(0, 2)), layer_rates=rates),
        replace(worker("b", 4, held(0, 8)), layer_rates=rates),
    )
    assert [row[0].seconds for row in index.rows()] == [0.25, 0.5]


def test_only_ready_layers_are_in_it_and_of_several_runs_the_longest() -> None:
    index = indexed(
        worker("a", 8, held(0, 1), held(2, 4), held(4, 8, Holding.DRAINING)),
        worker("b", 8, held(0, 4, Holding.LOADING)),
    )
    assert shown(index) == [["a"]]
    shard = index.get(WorkerId("a"))
    assert shard is not None
    assert shard.run == ShardRange(2, 4)


def test_a_worker_that_serves_nothing_any_more_is_gone() -> None:
    index = indexed(worker("a", 4, held(0, 4)), worker("b", 4, held(0, 4)))
    index.put(worker("a", 4), 0)
    index.remove(WorkerId("b"))
    index.remove(WorkerId("b"))
    assert (len(index), shown(index), index.get(WorkerId("a"))) == (0, [], None)


def test_rows_are_apart_by_locality() -> None:
    def at(name: str, region: str) -> WorkerView:
        return replace(worker(name, 4, held(0, 4)), region=region)

    index = indexed(at("a", "eu"), at("b", "us"), at("c", "eu"))
    assert shown(index) == [["a", "c"], ["b"]]
    index.put(at("c", "us"), 0)
    assert shown(index) == [["a"], ["b", "c"]]


def test_in_a_large_mesh_one_that_joins_is_placed_by_whom_it_is_near() -> None:
    def near(name: str, peer: str) -> WorkerView:
        return replace(worker(name, 4, held(0, 4)), round_trips=((WorkerId(peer), 0.001),))

    homes = [near(f"{home}{n:02}", f"{home}00") for home in "ab" for n in range(20)]
    index = indexed(*homes)
    assert [len(row) for row in index.rows()] == [20, 20]
    index.put(near("late", "b00"), 0)
    assert [len(row) for row in index.rows()] == [20, 21]


def test_rows_of_some_layers_are_those_that_hold_any_of_them() -> None:
    index = indexed(
        worker("a", 4, held(0, 4)), worker("b", 4, held(4, 8)), worker("c", 4, held(8, 12))
    )

    def names(start: int, end: int) -> list[str]:
        return [row[0].worker_id for row in index.rows_of(ShardRange(start, end))]

    assert names(0, 12) == ["a", "b", "c"]
    assert names(0, 4) == ["a"]
    assert names(3, 5) == ["a", "b"]
    assert names(4, 12) == ["b", "c"]
