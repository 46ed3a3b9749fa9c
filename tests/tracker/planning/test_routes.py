from itertools import pairwise
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.routes import HOP_SECONDS, NoRouteError, RouteCosts, choose_route
from meshnet_tracker.planning.snapshot import Holding, VariantKey, WorkerView
from tests.tracker.planning.meshes import KEY, held, worker

FREE_HOPS = RouteCosts(hop_seconds=0.0)


def shown(hops: tuple[RouteHop, ...]) -> list[tuple[str, int, int]]:
    return [(hop.worker_id, hop.start, hop.end) for hop in hops]


def seconds(hops: tuple[RouteHop, ...], pool: list[WorkerView], hop_seconds: float) -> float:
    by_id = {str(each.worker_id): each for each in pool}
    turns = ((len(hop.shard_range), by_id[hop.worker_id]) for hop in hops)
    return sum(layers * (1 + each.sessions) / each.speed + hop_seconds for layers, each in turns)


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


@st.composite
def pools(draw: st.DrawFn) -> tuple[int, list[WorkerView]]:
    layers = draw(st.integers(1, 8))
    pool = []
    for index in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, layers - 1))
        end = draw(st.integers(start + 1, layers))
        speed = draw(st.sampled_from((1.0, 3.0, 50.0)))
        sessions = draw(st.integers(0, 2))
        pool.append(worker(f"w{index}", 0, held(start, end), speed=speed, sessions=sessions))
    return layers, pool


def cheapest(
    layers: int, pool: list[WorkerView], hop_seconds: float, head: WorkerId | None
) -> float | None:
    """Try every Worker for every run of Layers, however often it was used before."""
    best: dict[int, float] = {0: 0.0}
    for end in range(1, layers + 1):
        costs = [
            best[start] + (end - start) * (1 + view.sessions) / view.speed + hop_seconds
            for start in range(end)
            if start in best
            for view in pool
            if view.held[0].shard_range.contains(ShardRange(start, end))
            if start or head in (None, view.worker_id)
        ]
        if costs:
            best[end] = min(costs)
    return best.get(layers)


@settings(deadline=None, max_examples=200)
@given(
    pools(),
    st.sampled_from((0.0, HOP_SECONDS, 0.5, 5.0)),
    st.sampled_from((None, None, WorkerId("w0"))),
)
def test_a_route_is_whole_inside_its_shards_and_the_quickest(
    drawn: tuple[int, list[WorkerView]], hop_seconds: float, head: WorkerId | None
) -> None:
    layers, pool = drawn
    bound = cheapest(layers, pool, hop_seconds, head)
    costs = RouteCosts(hop_seconds=hop_seconds)
    if bound is None:
        with pytest.raises(NoRouteError):
            choose_route(RouteTable.of(pool), KEY, layers, head=head, costs=costs)
        return
    hops = choose_route(RouteTable.of(pool), KEY, layers, head=head, costs=costs)
    runs = {str(view.worker_id): view.held[0].shard_range for view in pool}
    assert hops[0].start == 0
    assert head in (None, hops[0].worker_id)
    assert hops[-1].end == layers
    assert all(one.end == two.start for one, two in pairwise(hops))
    assert all(runs[hop.worker_id].contains(hop.shard_range) for hop in hops)
    assert len({hop.worker_id for hop in hops}) == len(hops)
    # Where the quickest way would use a Worker twice, a Route of single turns may cost more.
    nested = any(a != b and a.contains(b) for a in runs.values() for b in runs.values())
    if not nested:
        assert seconds(hops, pool, hop_seconds) == pytest.approx(bound)
    assert choose_route(RouteTable.of(pool[::-1]), KEY, layers, head=head, costs=costs) == hops


def test_a_route_through_a_small_mesh_takes_less_than_a_millisecond() -> None:
    pool = [worker(f"w{i}", 8, held(i % 4 * 8, i % 4 * 8 + 8)) for i in range(12)]
    taken = []
    for _ in range(20):
        before = perf_counter()
        choose_route(RouteTable.of(pool), KEY, 32, costs=FREE_HOPS)
        taken.append(perf_counter() - before)
    assert min(taken) < 0.001
