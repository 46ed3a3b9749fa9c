from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.route_table import REPORT_LAG_SECONDS, RouteTable
from meshnet_tracker.planning.routes import NoRouteError, RouteCosts, choose_route
from meshnet_tracker.planning.snapshot import HeldShard, Holding, VariantKey, WorkerView
from tests.tracker.planning.meshes import KEY, held, worker

A, B = WorkerId("a"), WorkerId("b")
OTHER = VariantKey("mistral", "nf4")
SECONDS = 5.0


def pair() -> RouteTable:
    return RouteTable.of([worker("a", 8, held(0, 8)), worker("b", 8, held(0, 8))])


def hops(*names: str) -> list[RouteHop]:
    return [RouteHop(worker_id=name, url="", start=0, end=8) for name in names]


def head_of(table: RouteTable, key: VariantKey = KEY) -> str:
    return choose_route(table, key, 8)[0].worker_id


def test_what_was_just_given_away_counts_at_once() -> None:
    table = pair()
    chosen = Counter[str]()
    for number in range(20):
        route = choose_route(table, KEY, 8, costs=RouteCosts(tie_salt=f"{number}"))
        table.note(route, 0.0, SECONDS)
        chosen[route[0].worker_id] += 1
    assert chosen == {"a": 10, "b": 10}


def test_a_note_counts_no_more_when_its_time_is_over() -> None:
    table = pair()
    table.note(hops("a"), 0.0, SECONDS)
    table.settle(SECONDS - 1)
    assert (table.noted(A), head_of(table)) == (1, "b")
    table.settle(SECONDS)
    assert (table.noted(A), head_of(table)) == (0, "a")


def test_a_session_that_is_over_makes_room_before_its_workers_say_so() -> None:
    busy = worker("a", 8, held(0, 8), sessions=1)
    table = RouteTable.of([busy, worker("b", 8, held(0, 8))])
    table.note_end(hops("a"), 0.0, SECONDS)
    assert (table.noted(A), head_of(table)) == (-1, "a")


def test_a_report_stands_for_what_was_noted_before_it() -> None:
    table = pair()
    table.note(hops("a"), 0.0, SECONDS)
    table.settle(REPORT_LAG_SECONDS)
    table.apply(table.worker(A), replace(worker("a", 8, held(0, 8)), kv_bytes_free=7))
    assert table.noted(A) == 0


def test_a_report_that_comes_at_once_stands_for_the_sessions_that_it_counts() -> None:
    table = pair()
    for _ in range(3):
        table.note(hops("a"), 0.0, SECONDS)
    table.apply(table.worker(A), worker("a", 8, held(0, 8), sessions=2))
    assert table.noted(A) == 1
    table.note_end(hops("a"), 0.0, SECONDS)
    table.apply(table.worker(A), worker("a", 8, held(0, 8), sessions=1))
    assert table.noted(A) == 1


def test_a_report_of_nothing_but_the_load_stands_for_it_too() -> None:
    table = pair()
    table.note(hops("a"), 0.0, SECONDS)
    table.settle(2 * REPORT_LAG_SECONDS)
    table.take_load(worker("a", 8, held(0, 8), sessions=2))
    assert (table.noted(A), head_of(table)) == (0, "b")


def test_what_changes_beside_the_load_is_no_report_of_it() -> None:
    table = pair()
    table.note(hops("a"), 0.0, SECONDS)
    table.settle(REPORT_LAG_SECONDS)
    table.apply(table.worker(A), replace(worker("a", 8, held(0, 8)), cooling_until=3.0))
    assert table.noted(A) == 1


def test_sessions_of_one_variant_count_for_the_others_too() -> None:
    both = (held(0, 8), held(0, 8, key=OTHER))
    table = RouteTable.of([worker("a", 16, *both), worker("b", 16, *both)])
    table.note(hops("a"), 0.0, SECONDS)
    assert head_of(table, OTHER) == "b"


def test_a_worker_that_is_gone_is_forgotten_with_its_notes() -> None:
    table = pair()
    table.note(hops("a"), 0.0, SECONDS)
    table.apply(table.worker(A), None)
    assert (head_of(table), table.worker(A), table.noted(A)) == ("b", None, 0)
    table.settle(SECONDS)
    table.note(hops("a"), SECONDS, SECONDS)
    table.apply(None, worker("a", 8, held(0, 8)))
    assert table.noted(A) == 0


def test_workers_are_listed_by_id_and_by_the_region_that_they_declare() -> None:
    near = replace(worker("b", 8), region="eu")
    table = RouteTable.of([near, worker("a", 8)])
    assert (table.names(), table.names("eu"), table.names("us")) == ([A, B], [B], ())
    table.apply(near, replace(near, region="us"))
    assert (table.names("eu"), table.names("us")) == ((), [B])
    table.apply(near, None)
    assert (table.names(), table.names("us")) == ([A], ())


LOADS = st.tuples(st.integers(0, 5), st.integers(0, 2))
"""Which Worker has how many Sessions now."""


@st.composite
def views(draw: st.DrawFn) -> WorkerView:
    """Draw one of six Workers in any state."""
    name = draw(st.integers(0, 5))
    runs = []
    for key in (KEY, OTHER):
        if draw(st.booleans()):
            start = draw(st.integers(0, 7))
            end = draw(st.integers(start + 1, 8))
            holding = draw(st.sampled_from((Holding.READY, Holding.READY, Holding.DRAINING)))
            runs.append(HeldShard(key, ShardRange(start, end), holding))
    others = st.integers(0, 5).filter(lambda peer: peer != name)
    trips = draw(st.dictionaries(others, st.sampled_from((0.001, 0.02, 0.1))))
    return replace(
        worker(f"w{name}", 0, *runs),
        speed=draw(st.sampled_from((50.0, 100.0))),
        sessions=draw(st.integers(0, 2)),
        region=draw(st.sampled_from(("", "eu", "us"))),
        round_trips=tuple((WorkerId(f"w{peer}"), s) for peer, s in sorted(trips.items())),
    )


def shown(table: RouteTable, key: VariantKey) -> object:
    try:
        return choose_route(table, key, 8, costs=RouteCosts(tie_salt="s", hop_bytes=1000))
    except NoRouteError as error:
        return error.missing


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(views(), st.integers(0, 5), LOADS), max_size=40))
def test_a_table_that_was_changed_step_by_step_is_as_one_made_anew(
    changes: list[WorkerView | int | tuple[int, int]],
) -> None:
    table = RouteTable()
    now: dict[WorkerId, WorkerView] = {}
    for change in changes:
        if isinstance(change, tuple):
            name = WorkerId(f"w{change[0]}")
            if name in now:
                now[name] = replace(now[name], sessions=change[1])
                table.take_load(now[name])
        elif isinstance(change, int):
            gone = now.pop(WorkerId(f"w{change}"), None)
            table.apply(gone, None)
        else:
            table.apply(now.get(change.worker_id), change)
            now[change.worker_id] = change
        shown(table, KEY)
    anew = RouteTable.of(now.values())
    assert table.names() == anew.names()
    for key in (KEY, OTHER):
        assert shown(table, key) == shown(anew, key)
