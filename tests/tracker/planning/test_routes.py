from collections import Counter
from dataclasses import replace
from time import perf_counter

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.routes import NoRouteError, RouteCosts, choose_route
from meshnet_tracker.planning.snapshot import Holding, VariantKey, WorkerView
from tests.tracker.planning.meshes import KEY, held, worker

FREE_HOPS = RouteCosts(hop_seconds=0.0)


def shown(hops: tuple[RouteHop, ...]) -> list[tuple[str, int, int]]:
    return [(hop.worker_id, hop.start, hop.end) for hop in hops]


def test_a_route_runs_every_layer_once_in_order() -> None:
    pool = [worker("b", 4, held(4, 8)), worker("a", 4, held(0, 4)), worker("c", 4, held(8, 12))]
    assert shown(choose_route(RouteTable.of(pool), KEY, 12)) == [
        ("a", 0, 4),
        ("b", 4, 8),
        ("c", 8, 12),
    ]


def test_a_hop_may_enter_a_shard_in_the_middle_and_leave_it_early() -> None:
    pool = [
        worker("a", 6, held(0, 6), speed=1.0),
        worker("b", 8, held(2, 10), speed=100.0),
        worker("c", 6, held(6, 12), speed=1.0),
    ]
    assert shown(choose_route(RouteTable.of(pool), KEY, 12)) == [
        ("a", 0, 2),
        ("b", 2, 10),
        ("c", 10, 12),
    ]


def test_a_hop_is_not_worth_it_for_a_layer_that_is_only_a_little_faster() -> None:
    pool = [worker("all", 8, held(0, 8), speed=1000.0), worker("b", 4, held(2, 6), speed=1200.0)]
    assert shown(choose_route(RouteTable.of(pool), KEY, 8)) == [("all", 0, 8)]


def test_no_worker_takes_two_turns() -> None:
    pool = [worker("all", 8, held(0, 8)), worker("b", 4, held(2, 6), speed=1000.0)]
    hops = choose_route(RouteTable.of(pool), KEY, 8)
    assert shown(hops) == [("all", 0, 8)]


def test_sessions_share_a_workers_speed() -> None:
    pool = [
        worker("busy", 8, held(0, 8), speed=2.0, sessions=3),
        worker("idle", 8, held(0, 8), speed=1.0),
    ]
    assert shown(choose_route(RouteTable.of(pool), KEY, 8)) == [("idle", 0, 8)]


@pytest.mark.parametrize("holding", [Holding.ORDERED, Holding.LOADING, Holding.DRAINING])
def test_only_ready_shards_are_on_a_route(holding: Holding) -> None:
    pool = [worker("a", 8, held(0, 4), held(4, 8, holding))]
    with pytest.raises(NoRouteError, match=r"Missing Layers: \[4, 8\)"):
        choose_route(RouteTable.of(pool), KEY, 8)


def test_shards_that_touch_are_one_turn() -> None:
    assert shown(choose_route(RouteTable.of([worker("a", 8, held(0, 4), held(4, 8))]), KEY, 8)) == [
        ("a", 0, 8)
    ]


def test_an_excluded_worker_is_avoided_and_its_layers_are_named_if_nobody_else_has_them() -> None:
    pool = [worker("a", 4, held(0, 4)), worker("b", 4, held(4, 8)), worker("c", 4, held(4, 8))]
    first = shown(choose_route(RouteTable.of(pool), KEY, 8))
    assert first == [("a", 0, 4), ("b", 4, 8)]
    without = frozenset({WorkerId("b")})
    assert shown(choose_route(RouteTable.of(pool), KEY, 8, exclude=without)) == [
        ("a", 0, 4),
        ("c", 4, 8),
    ]
    with pytest.raises(NoRouteError) as caught:
        choose_route(RouteTable.of(pool), KEY, 8, exclude=without | {WorkerId("c")})
    assert caught.value.missing == (ShardRange(4, 8),)


def test_a_route_begins_at_the_head_worker_that_was_asked_for() -> None:
    pool = [
        worker("slow", 4, held(0, 4)),
        worker("fast", 8, held(0, 8), speed=50.0),
        worker("end", 4, held(4, 8)),
    ]
    hops = choose_route(RouteTable.of(pool), KEY, 8, head=WorkerId("slow"))
    assert shown(hops) == [("slow", 0, 1), ("fast", 1, 8)]


def test_a_head_worker_that_does_not_serve_the_first_layer_is_named() -> None:
    pool = [worker("a", 8, held(0, 8)), worker("b", 4, held(4, 8))]
    with pytest.raises(NoRouteError, match="Worker b is not ready to serve Layer 0"):
        choose_route(RouteTable.of(pool), KEY, 8, head=WorkerId("b"))


def test_a_shard_of_another_variant_is_no_help() -> None:
    pool = [worker("a", 8, held(0, 8, key=VariantKey("llama", "int8")))]
    with pytest.raises(NoRouteError):
        choose_route(RouteTable.of(pool), KEY, 8)


def test_a_hop_says_where_to_find_its_worker() -> None:
    (hop,) = choose_route(RouteTable.of([worker("a", 8, held(0, 8))]), KEY, 8)
    assert hop.url == "http://a"


def test_equal_workers_get_about_equal_shares_of_sessions() -> None:
    pool = [worker(name, 8, held(0, 8)) for name in "abcd"]
    heads = [
        choose_route(RouteTable.of(pool), KEY, 8, costs=RouteCosts(tie_salt=f"session {i}"))[
            0
        ].worker_id
        for i in range(400)
    ]
    assert min(heads.count(name) for name in "abcd") > 60


def near(view: WorkerView, region: str, **trips: float) -> WorkerView:
    measured = tuple((WorkerId(peer), seconds) for peer, seconds in sorted(trips.items()))
    return replace(view, region=region, round_trips=measured)


def test_a_route_stays_in_its_locality_though_others_are_quicker() -> None:
    pool = [
        near(worker("a", 4, held(0, 4), speed=100.0), "home"),
        near(worker("b", 4, held(4, 8), speed=100.0), "home"),
        near(worker("c", 4, held(4, 8), speed=150.0), "elsewhere"),
    ]
    assert shown(choose_route(RouteTable.of(pool), KEY, 8)) == [("a", 0, 4), ("b", 4, 8)]
    pool[2] = replace(pool[2], speed=1e6, round_trips=((WorkerId("a"), 0.01),))
    assert shown(choose_route(RouteTable.of(pool), KEY, 8)) == [("a", 0, 4), ("c", 4, 8)]


def test_the_way_back_to_the_head_worker_counts() -> None:
    pool = [
        near(worker("a", 4, held(0, 4), speed=100.0), "", b=0.01, c=0.01),
        near(worker("b", 4, held(4, 8), speed=100.0), "", d=0.4),
        near(worker("c", 4, held(4, 8), speed=90.0), "", d=0.01),
        near(worker("d", 4, held(8, 12), speed=100.0), "", a=0.01),
    ]
    names = [name for name, _, _ in shown(choose_route(RouteTable.of(pool), KEY, 12))]
    assert names == ["a", "c", "d"]


def test_a_slow_line_is_a_reason_to_choose_another_worker() -> None:
    pool = [
        replace(worker("a", 4, held(0, 4)), uplink_bytes_per_sec=1e5),
        replace(worker("b", 4, held(0, 4), speed=0.999), uplink_bytes_per_sec=1e8),
        worker("c", 4, held(4, 8)),
    ]
    table = RouteTable.of(pool)
    assert shown(choose_route(table, KEY, 8))[0][0] == "a"
    costs = RouteCosts(hop_bytes=16384)
    assert shown(choose_route(table, KEY, 8, costs=costs))[0][0] == "b"


def test_a_worker_without_room_is_taken_only_where_no_other_is() -> None:
    full = replace(worker("full", 8, held(0, 8), speed=9.0), kv_bytes_free=799)
    slow = replace(worker("slow", 8, held(0, 8), speed=0.1), kv_bytes_free=800)
    costs = RouteCosts(kv_bytes_per_layer=100)
    assert shown(choose_route(RouteTable.of([full, slow]), KEY, 8, costs=costs)) == [("slow", 0, 8)]
    assert shown(choose_route(RouteTable.of([full]), KEY, 8, costs=costs)) == [("full", 0, 8)]


def test_a_chat_keeps_its_workers_while_that_costs_little() -> None:
    pool = [worker(name, 8, held(0, 8)) for name in "abcd"]
    heads = {}
    for number in range(40):
        costs = [RouteCosts(tie_salt=salt, affinity=f"talk {number}") for salt in ("x", "y")]
        first, again = (choose_route(RouteTable.of(pool), KEY, 8, costs=each) for each in costs)
        assert first == again
        heads[number] = first[0].worker_id
    assert set(heads.values()) == set("abcd")
    busy = [replace(each, sessions=each.worker_id == heads[0]) for each in pool]
    costs_of_first = RouteCosts(affinity="talk 0")
    assert choose_route(RouteTable.of(busy), KEY, 8, costs=costs_of_first)[0].worker_id != heads[0]


def test_heads_and_tails_of_equal_chains_get_about_equal_load() -> None:
    pool = [
        worker(f"{name}{end}", 4, held(4 * end, 4 * end + 4)) for name in "abc" for end in (0, 1)
    ]
    pool += [worker("whole", 8, held(0, 8))]
    table = RouteTable.of(pool)
    counts = Counter[str]()
    for number in range(120):
        route = choose_route(table, KEY, 8, costs=RouteCosts(tie_salt=f"{number}"))
        table.note(route, 0.0, 60.0)
        counts.update(hop.worker_id for hop in route)
    assert all(abs(counts[name] - 35) <= 5 for name in counts), counts


def test_a_route_through_a_small_mesh_takes_less_than_a_millisecond() -> None:
    pool = [worker(f"w{i}", 8, held(i % 4 * 8, i % 4 * 8 + 8)) for i in range(12)]
    taken = []
    for _ in range(20):
        before = perf_counter()
        choose_route(RouteTable.of(pool), KEY, 32, costs=FREE_HOPS)
        taken.append(perf_counter() - before)
    assert min(taken) < 0.001
