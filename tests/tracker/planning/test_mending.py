from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.coverage import ROUTABLE, held_ranges
from meshnet_tracker.planning.mending import Detour, mend_route
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.routes import NoRouteError, choose_route
from meshnet_tracker.planning.snapshot import Holding, WorkerView
from tests.tracker.planning.meshes import KEY, held, worker

THREE = (worker("a", 4, held(0, 4)), worker("b", 4, held(4, 8)), worker("c", 4, held(8, 12)))


def ids(*names: str) -> frozenset[WorkerId]:
    return frozenset(map(WorkerId, names))


def around(*sets: frozenset[WorkerId], head: str | None = None) -> Detour:
    return Detour(sets or (ids(),), None if head is None else WorkerId(head))


def shown(hops: Sequence[RouteHop]) -> list[tuple[str, int, int]]:
    return [(hop.worker_id, hop.start, hop.end) for hop in hops]


OLD = choose_route(RouteTable.of(THREE), KEY, 12)


def test_a_route_of_which_nothing_is_missing_stays_as_it_is() -> None:
    quicker = worker("quick", 12, held(0, 12), speed=1000.0)
    assert mend_route(RouteTable.of((*THREE, quicker)), KEY, OLD, around()) == OLD


def test_only_the_layers_of_the_faulty_worker_are_covered_anew() -> None:
    pool = (*THREE, worker("d", 8, held(2, 10), speed=100.0), worker("e", 12, held(0, 12)))
    mended = mend_route(RouteTable.of(pool), KEY, OLD, around(ids("b")))
    assert shown(mended) == [("a", 0, 4), ("d", 4, 8), ("c", 8, 12)]


def test_what_one_worker_ran_may_be_run_by_two() -> None:
    pool = (*THREE, worker("d", 8, held(0, 6)), worker("e", 12, held(6, 12)))
    mended = mend_route(RouteTable.of(pool), KEY, OLD, around(ids("b")))
    assert shown(mended) == [("a", 0, 4), ("d", 4, 6), ("e", 6, 8), ("c", 8, 12)]


@pytest.mark.parametrize("lost", [("a", "c"), ("a", "b"), ("b", "c")])
def test_several_workers_may_be_missing(lost: tuple[str, ...]) -> None:
    spare = [worker(f"spare {view.worker_id}", 4, *view.held) for view in THREE]
    mended = mend_route(RouteTable.of((*THREE, *spare)), KEY, OLD, around(ids(*lost)))
    names = [f"spare {name}" if name in lost else name for name in "abc"]
    assert [hop.worker_id for hop in mended] == names


@pytest.mark.parametrize("holding", [Holding.LOADING, Holding.DRAINING])
def test_a_worker_that_is_no_longer_ready_is_missing(holding: Holding) -> None:
    pool = (THREE[0], worker("b", 4, held(4, 8, holding)), THREE[2], worker("d", 4, held(4, 8)))
    assert shown(mend_route(RouteTable.of(pool), KEY, OLD, around()))[1] == ("d", 4, 8)


def test_a_worker_that_holds_a_part_of_its_layers_no_more_is_missing_with_all() -> None:
    pool = (THREE[0], worker("b", 4, held(4, 7)), THREE[2], worker("d", 4, held(4, 8)))
    assert shown(mend_route(RouteTable.of(pool), KEY, OLD, around()))[1] == ("d", 4, 8)


def test_a_hop_that_stays_is_where_its_worker_can_be_reached_now() -> None:
    moved = replace(THREE[2], url="http://elsewhere", fingerprint="new")
    hop = mend_route(RouteTable.of((*THREE[:2], moved)), KEY, OLD, around())[2]
    assert (hop.url, hop.fingerprint) == ("http://elsewhere", "new")


def test_where_the_missing_layers_are_only_on_the_route_already_the_best_route_is_taken() -> None:
    pool = (worker("a", 8, held(0, 8)), THREE[2])
    old = choose_route(RouteTable.of((*THREE[1:], worker("a", 8, held(0, 4)))), KEY, 12)
    assert shown(old)[0] == ("a", 0, 4)
    assert shown(mend_route(RouteTable.of(pool), KEY, old, around(ids("b")))) == [
        ("a", 0, 8),
        ("c", 8, 12),
    ]


def test_the_head_worker_that_is_asked_for_begins_also_a_route_that_is_not_its_own() -> None:
    pool = (*THREE, worker("head", 4, held(0, 4)))
    mended = mend_route(RouteTable.of(pool), KEY, OLD, around(head="head"))
    assert shown(mended) == [("head", 0, 4), ("b", 4, 8), ("c", 8, 12)]


def test_a_head_worker_that_cannot_begin_is_named() -> None:
    with pytest.raises(NoRouteError, match="Worker b is not ready to serve Layer 0"):
        mend_route(RouteTable.of(THREE), KEY, OLD, around(head="b"))


def test_a_worker_to_avoid_is_taken_before_a_faulty_one_and_that_before_nobody() -> None:
    pool = (*THREE, worker("d", 4, held(4, 8)))
    detour = around(ids("b", "d"), ids("b"), ids())
    assert shown(mend_route(RouteTable.of(pool), KEY, OLD, detour))[1] == ("d", 4, 8)
    assert shown(mend_route(RouteTable.of(THREE), KEY, OLD, detour))[1] == ("b", 4, 8)


def test_the_layers_that_nobody_has_ready_are_named() -> None:
    with pytest.raises(NoRouteError) as caught:
        mend_route(
            RouteTable.of((THREE[0], THREE[2])), KEY, OLD, around(ids("a", "b"), ids("b"), ids())
        )
    assert caught.value.missing == (ShardRange(4, 8),)


@st.composite
def meshes(draw: st.DrawFn) -> tuple[int, list[WorkerView], list[WorkerView]]:
    """Draw a mesh that has a Route, and what has become of it later."""
    layers = draw(st.integers(1, 8))
    before = [worker("all", 0, held(0, layers), speed=draw(st.sampled_from((0.1, 20.0))))]
    for index in range(draw(st.integers(1, 7))):
        start = draw(st.integers(0, layers - 1))
        end = draw(st.integers(start + 1, layers))
        speed = draw(st.sampled_from((1.0, 3.0, 50.0)))
        before.append(worker(f"w{index}", 0, held(start, end), speed=speed))
    later = [
        replace(view, held=(replace(view.held[0], holding=draw(st.sampled_from(list(Holding)))),))
        if draw(st.integers(0, 5)) == 0
        else view
        for view in before
        if draw(st.integers(0, 5))
    ]
    return layers, before, later


@settings(deadline=None, max_examples=300)
@given(meshes(), st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)), st.booleans())
def test_a_mended_route_is_whole_and_keeps_all_that_is_left(
    drawn: tuple[int, list[WorkerView], list[WorkerView]],
    avoided: set[int],
    faulty: set[int],
    keeps_head: bool,
) -> None:
    layers, before, later = drawn
    old = choose_route(RouteTable.of(before), KEY, layers)
    head = WorkerId(old[0].worker_id) if keeps_head else None
    sets = [ids(*(f"w{n}" for n in numbers)) - {head} for numbers in (avoided | faulty, faulty)]
    detour = Detour((*sets, ids()), head)
    try:
        mended = mend_route(RouteTable.of(later), KEY, old, detour)
    except NoRouteError:
        with pytest.raises(NoRouteError):
            choose_route(RouteTable.of(later), KEY, layers, head=head)
        return
    runs = {view.worker_id: held_ranges(view, KEY, ROUTABLE) for view in later}
    assert (mended[0].start, mended[-1].end) == (0, layers)
    assert all(one.end == two.start for one, two in pairwise(mended))
    assert len({hop.worker_id for hop in mended}) == len(mended)
    assert all(
        any(run.contains(hop.shard_range) for run in runs[WorkerId(hop.worker_id)])
        for hop in mended
    )
    assert head in (None, mended[0].worker_id)
    used = ids(*(hop.worker_id for hop in mended))
    exclude = next(each for each in detour.around if not used & each)
    for tried in detour.around[: detour.around.index(exclude)]:
        with pytest.raises(NoRouteError):
            choose_route(RouteTable.of(later), KEY, layers, exclude=tried, head=head)
    best = choose_route(RouteTable.of(later), KEY, layers, exclude=exclude, head=head)
    left = {
        (hop.worker_id, hop.start, hop.end)
        for hop in old
        if hop.worker_id not in exclude
        and any(run.contains(hop.shard_range) for run in runs.get(WorkerId(hop.worker_id), ()))
    }
    assert left <= set(shown(mended)) or mended == best
