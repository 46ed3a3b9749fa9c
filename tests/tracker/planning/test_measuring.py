from dataclasses import replace

from meshnet_common.ids import WorkerId
from meshnet_tracker.planning.measuring import (
    ENOUGH,
    MOST_ASKED,
    PERIOD_SECONDS,
    peers_to_measure,
)
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.snapshot import WorkerView
from tests.tracker.planning.meshes import held, worker

A = WorkerId("a")


def asked(table: RouteTable, now: float = 0.0, worker_id: WorkerId = A) -> list[str]:
    return [peer.worker_id for peer in peers_to_measure(table, worker_id, now)]


def over_time(table: RouteTable, periods: int = 60) -> set[str]:
    return {name for n in range(periods) for name in asked(table, n * PERIOD_SECONDS)}


def chain(count: int) -> list[WorkerView]:
    return [worker(f"w{n}", 4, held(4 * n, 4 * n + 4)) for n in range(count)]


def test_a_worker_alone_measures_nobody() -> None:
    table = RouteTable.of([worker("a", 4, held(0, 4))])
    assert asked(table) == []
    assert asked(table, worker_id=WorkerId("unknown")) == []


def test_a_few_at_a_time_and_others_later() -> None:
    table = RouteTable.of([worker("a", 4, held(0, 4)), *chain(30)])
    first = asked(table)
    assert 0 < len(first) <= MOST_ASKED
    assert asked(table, 1.0) == first
    assert len(over_time(table)) == 30


def test_a_peer_is_named_with_its_address() -> None:
    table = RouteTable.of([worker("a", 4, held(0, 4)), worker("b", 4, held(4, 8))])
    (peer,) = peers_to_measure(table, A, 0.0)
    assert (peer.worker_id, peer.url) == ("b", "http://b")


def test_what_either_end_has_measured_is_not_asked_for_again() -> None:
    own = replace(worker("a", 4, held(0, 4)), round_trips=((WorkerId("w1"), 0.1),))
    pool = chain(3)
    pool[2] = replace(pool[2], round_trips=((A, 0.1),))
    assert over_time(RouteTable.of([own, *pool])) == {"w0"}


def test_a_worker_that_knows_enough_is_left_alone() -> None:
    trips = tuple((WorkerId(f"x{n}"), 0.1) for n in range(ENOUGH))
    own = replace(worker("a", 4, held(0, 4)), round_trips=trips)
    assert asked(RouteTable.of([own, *chain(3)])) == []


def test_who_may_be_next_on_a_route_and_who_says_that_it_is_near_come_first() -> None:
    own = replace(worker("a", 4, held(0, 4)), region="eu")
    near = replace(worker("near", 4), region="eu")
    far = [replace(worker(f"far{n}", 4), region="us") for n in range(200)]
    table = RouteTable.of([own, near, worker("next", 4, held(4, 8)), *far])
    often = [name for n in range(20) for name in asked(table, n * PERIOD_SECONDS)]
    assert often.count("near") > 15
    assert often.count("next") > 15


def test_who_serves_nothing_yet_measures_too() -> None:
    table = RouteTable.of([worker("a", 4), worker("b", 4), *chain(2)])
    assert over_time(table) == {"b", "w0", "w1"}
