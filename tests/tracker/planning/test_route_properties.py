"""Routes of small meshes beside all Routes that there are."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteHop
from meshnet_tracker.planning.coverage import count_layers
from meshnet_tracker.planning.mending import Detour, mend_route
from meshnet_tracker.planning.route_links import round_trip_seconds, sending_seconds
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.routes import NoRouteError, RouteCosts, choose_route
from meshnet_tracker.planning.snapshot import WorkerView
from tests.tracker.planning.meshes import KEY, held, worker


def shown(hops: Sequence[RouteHop]) -> list[tuple[str, int, int]]:
    return [(hop.worker_id, hop.start, hop.end) for hop in hops]


def drawn_pool(seed: int) -> tuple[int, list[WorkerView], RouteCosts]:
    """Draw a small mesh whose Workers have measured some of the ways between them."""
    random = Random(seed)
    layers, count = random.randint(1, 6), random.randint(1, 5)
    names = [WorkerId(f"w{number}") for number in range(count)]
    pool = []
    for name in names:
        start = random.randrange(layers)
        run = held(start, random.randint(start + 1, layers))
        trips = {peer: random.choice((0.001, 0.05, 0.4)) for peer in names if random.random() < 0.4}
        trips.pop(name, None)
        view = worker(name, 0, run, speed=random.choice((5.0, 20.0)), sessions=random.randrange(3))
        pool.append(
            replace(
                view,
                region=random.choice(("", "eu", "us")),
                round_trips=tuple(sorted(trips.items())),
                uplink_bytes_per_sec=random.choice((0.0, 1e6)),
            )
        )
    costs = RouteCosts(random.choice((0.0, 0.002, 0.5)), hop_bytes=random.choice((0, 10_000)))
    return layers, pool, costs


def all_routes(
    layers: int, pool: list[WorkerView], hops: tuple[tuple[str, int, int], ...] = ()
) -> Iterator[tuple[tuple[str, int, int], ...]]:
    layer = hops[-1][2] if hops else 0
    if layer == layers:
        yield hops
        return
    for view in pool:
        run = view.held[0].shard_range
        if run.start <= layer and view.worker_id not in {name for name, _, _ in hops}:
            for end in range(layer + 1, run.end + 1):
                yield from all_routes(layers, pool, (*hops, (view.worker_id, layer, end)))


def seconds(
    hops: Sequence[tuple[str, int, int]], pool: list[WorkerView], costs: RouteCosts
) -> float:
    """Add up what one token takes on a Route."""
    index = RouteTable.of(pool).of_variant(KEY)
    index.rows()
    total = 0.0
    shards = []
    for name, start, end in hops:
        shard = index.get(WorkerId(name))
        assert shard is not None
        total += costs.hop_seconds + (end - start) * shard.layer_seconds
        shards.append(shard)
    for one, two in pairwise(shards):
        total += round_trip_seconds(one, two, index) / 2
        total += sending_seconds(one, two, costs.hop_bytes)
    return total + round_trip_seconds(shards[-1], shards[0], index) / 2


@settings(deadline=None, max_examples=2000)
@given(st.integers(0, 2**32 - 1), st.sampled_from((None, None, WorkerId("w0"))))
def test_a_route_is_whole_inside_its_shards_and_the_quickest(
    seed: int, head: WorkerId | None
) -> None:
    layers, pool, costs = drawn_pool(seed)
    routes = [route for route in all_routes(layers, pool) if head in (None, WorkerId(route[0][0]))]
    counts = count_layers((view.held[0].shard_range for view in pool), layers)
    if head is None:
        assert bool(routes) == all(counts)
    if not routes:
        with pytest.raises(NoRouteError):
            choose_route(RouteTable.of(pool), KEY, layers, head=head, costs=costs)
        return
    hops = choose_route(RouteTable.of(pool), KEY, layers, head=head, costs=costs)
    runs = {str(view.worker_id): view.held[0].shard_range for view in pool}
    assert (hops[0].start, hops[-1].end) == (0, layers)
    assert head in (None, hops[0].worker_id)
    assert all(one.end == two.start for one, two in pairwise(hops))
    assert all(runs[hop.worker_id].contains(hop.shard_range) for hop in hops)
    assert len({hop.worker_id for hop in hops}) == len(hops)
    best = min(seconds(route, pool, costs) for route in routes)
    nested = any(a != b and runs[a].contains(runs[b]) for a in runs for b in runs)
    # Where the quickest way would use a Worker twice, a Route of single turns may cost more.
    if not nested:
        assert seconds(shown(hops), pool, costs) == pytest.approx(best)
    assert choose_route(RouteTable.of(pool[::-1]), KEY, layers, head=head, costs=costs) == hops


@settings(deadline=None, max_examples=2000)
@given(st.integers(0, 2**32 - 1), st.integers(0, 4))
def test_a_mended_route_keeps_what_is_left_and_fills_the_gap_as_cheaply_as_can_be(
    seed: int, lost: int
) -> None:
    layers, pool, costs = drawn_pool(seed)
    try:
        old = choose_route(RouteTable.of(pool), KEY, layers, costs=costs)
    except NoRouteError:
        return
    gone = frozenset({WorkerId(f"w{lost}")})
    left = [hop for hop in shown(old) if hop[0] not in gone]
    able = [view for view in pool if view.worker_id not in gone]
    filled = [route for route in all_routes(layers, able) if set(left) <= set(route)]
    if not filled:
        return
    mended = shown(mend_route(RouteTable.of(pool), KEY, old, Detour((gone,)), costs))
    assert set(left) <= set(mended)
    best = min(seconds(route, pool, costs) for route in filled)
    runs = {str(view.worker_id): view.held[0].shard_range for view in able}
    if not any(a != b and runs[a].contains(runs[b]) for a in runs for b in runs):
        assert seconds(mended, pool, costs) == pytest.approx(best)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_table_that_has_changed_chooses_as_one_that_is_made_anew(seed: int) -> None:
    random = Random(seed)
    layers, table, pool = 12, RouteTable(), dict[WorkerId, WorkerView]()
    for _ in range(120):
        name = WorkerId(f"w{random.randrange(50)}")
        before, after = pool.pop(name, None), None
        if before is None or random.random() < 0.7:
            start = random.randrange(layers)
            runs = before.held if before else (held(start, random.randint(start + 1, layers)),)
            view = worker(name, 0, *runs, speed=random.choice((5.0, 20.0)))
            after = pool[name] = replace(view, sessions=random.randrange(4))
        table.apply(before, after)
    costs = RouteCosts(0.01, tie_salt=f"{seed}")
    try:
        anew = choose_route(RouteTable.of(pool.values()), KEY, layers, costs=costs)
    except NoRouteError:
        with pytest.raises(NoRouteError):
            choose_route(table, KEY, layers, costs=costs)
        return
    assert choose_route(table, KEY, layers, costs=costs) == anew
