from dataclasses import replace
from math import inf

import pytest

from meshnet_common.ids import WorkerId
from meshnet_tracker.planning.route_index import VariantIndex
from meshnet_tracker.planning.route_links import (
    BETWEEN_SECONDS,
    INSIDE_SECONDS,
    UNKNOWN_SECONDS,
    UNMEASURED_BYTES_PER_SECOND,
    latencies,
    round_trip_seconds,
    sending_seconds,
    take_overs,
    ways_between,
)
from meshnet_tracker.planning.route_rows import Shard
from meshnet_tracker.planning.snapshot import WorkerView
from tests.tracker.planning.meshes import KEY, held, worker


def placed(name: str, region: str = "", uplink: float = 0.0, **trips: float) -> WorkerView:
    measured = tuple((WorkerId(peer), seconds) for peer, seconds in sorted(trips.items()))
    return replace(
        worker(name, 4, held(0, 4)),
        region=region,
        round_trips=measured,
        uplink_bytes_per_sec=uplink,
    )


def indexed(*workers: WorkerView) -> tuple[VariantIndex, list[Shard]]:
    index = VariantIndex(KEY)
    for each in workers:
        index.put(each, 0)
    found = {one.worker_id: one.shard for row in index.rows() for one in row}
    return index, [found[each.worker_id] for each in workers]


def trip(*workers: WorkerView) -> float:
    index, (one, two, *_) = indexed(*workers)
    assert round_trip_seconds(one, two, index) == round_trip_seconds(two, one, index)
    return round_trip_seconds(one, two, index)


def test_what_was_measured_counts_whoever_did_it_and_of_two_the_shorter() -> None:
    assert trip(placed("a", b=0.3), placed("b")) == 0.3
    assert trip(placed("a"), placed("b", a=0.4)) == 0.4
    assert trip(placed("a", b=0.3), placed("b", a=0.4)) == 0.3


def test_what_was_not_measured_is_estimated_by_localities() -> None:
    assert trip(placed("a", "eu"), placed("b", "eu")) == INSIDE_SECONDS
    assert trip(placed("a", "eu"), placed("b", "us")) == BETWEEN_SECONDS
    assert trip(placed("a", "eu"), placed("b")) == UNKNOWN_SECONDS


def test_the_shortest_way_that_others_have_measured_between_two_localities_counts() -> None:
    others = placed("c", "eu", d=0.2, e=0.3), placed("d", "us"), placed("e", "us")
    assert trip(placed("a", "eu"), placed("b", "us"), *others) == 0.2


def test_a_worker_is_at_once_with_itself() -> None:
    index, (one,) = indexed(placed("a"))
    assert round_trip_seconds(one, one, index) == 0


def test_latencies_are_half_the_round_trips() -> None:
    index, shards = indexed(placed("a", "eu", b=0.3), placed("b", "us"), placed("c", "us"))
    ways = latencies(ways_between(shards, index))
    for one, row in zip(shards, ways, strict=True):
        for two, seconds in zip(shards, row, strict=True):
            assert seconds == pytest.approx(round_trip_seconds(one, two, index) / 2)


def test_what_leaves_a_locality_goes_over_the_workers_line() -> None:
    _, (one, near, far) = indexed(
        placed("a", "eu", uplink=2e6), placed("b", "eu"), placed("c", "us")
    )
    assert sending_seconds(one, near, 4000) == 0
    assert sending_seconds(one, far, 4000) == 0.002
    assert sending_seconds(far, one, 4000) == 4000 / UNMEASURED_BYTES_PER_SECOND
    assert sending_seconds(one, far, 0) == 0


@pytest.mark.parametrize("hop_bytes", [0, 4000])
def test_a_take_over_costs_the_way_the_line_and_an_overhead(hop_bytes: int) -> None:
    index, shards = indexed(
        placed("a", "eu", uplink=2e6, c=0.2), placed("b", "eu"), placed("c", "us"), placed("d")
    )
    matrix = take_overs(shards, ways_between(shards, index), 0.5, hop_bytes)
    for two, row in zip(shards, matrix, strict=True):
        for one, seconds in zip(shards, row, strict=True):
            way = round_trip_seconds(one, two, index) / 2 + sending_seconds(one, two, hop_bytes)
            assert seconds == (inf if one is two else pytest.approx(way + 0.5))
