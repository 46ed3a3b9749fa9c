"""Sessions whose Route fails: they are opened again around what has failed, and lose nothing."""

import asyncio

import msgspec
import pytest

from meshnet_common.openai.errors import model_unavailable, not_found, overloaded
from meshnet_common.protocol.bodies import (
    SEGMENT_FILL,
    CloseBody,
    ErrorBody,
    KvFigures,
    ReplayBody,
)
from meshnet_common.protocol.messages import HopFault
from meshnet_worker import head_driver, head_session, head_tokens, refill
from meshnet_worker.head_session import BlamedError, HopFailedError, RouteLostError
from tests.common.builders import hop
from tests.worker.head_routes import EPOCH, ROUTE, Route, fault, generating, generation
from tests.worker.waiting import SECONDS


@pytest.fixture(autouse=True)
def short_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refill, "WORTH_A_FILL", 0)
    monkeypatch.setattr(head_session, "FIRST_BACK_OFF_SECONDS", 0.001)


def lost(worker_id: str = "w1", code: str = "peer_lost") -> ErrorBody:
    return msgspec.structs.replace(fault(code), worker_id=worker_id)


def holding(*held: int, kept: tuple[int, ...] = (0, 0)) -> dict[str, tuple[int, ...]]:
    """What the Hops of the next opening still have."""
    return {"held": held, "kept": kept}


async def test_a_session_goes_on_around_a_lost_hop() -> None:
    route = Route(mend_seconds=SECONDS)
    route.faults_at = {5: lost()}
    assert await route.tokens() == [3, 4, 5, 6]
    assert route.reported == [(HopFault(worker_id="w1", code="peer_lost"),)]
    assert route.openings[0].ticket == ROUTE.token
    assert len(route.openings) == 2


async def test_what_survives_is_not_run_again() -> None:
    route = Route(mend_seconds=SECONDS)
    route.faults_at = {5: lost()}
    route.reopenings = [holding(4, 4)]
    assert await route.tokens() == [3, 4, 5, 6]
    again = [(run.epoch, run.start, run.token_ids) for run in route.segments if run.epoch > EPOCH]
    assert again == [((2, 1), 4, (4,)), ((2, 1), 5, (5,))]


async def test_a_replaced_tail_is_refilled_by_who_sent_to_the_one_before() -> None:
    route = Route(mend_seconds=SECONDS)
    route.faults_at = {5: lost()}
    route.reopenings = [holding(4, 0, kept=(4, 0))]
    assert await route.tokens() == [3, 4, 5, 6]
    replays = [(to, body) for to, body in route.sent if isinstance(body, ReplayBody)]
    assert [(to, b.epoch, b.start, b.tokens, b.last_hop) for to, b in replays] == [
        ("w0", (2, 1), 0, 4, 1)
    ]


async def test_a_replaced_first_hop_is_refilled_from_token_ids() -> None:
    route = Route(mend_seconds=SECONDS)
    route.faults_at = {5: lost("w0", "engine_lost")}
    route.reopenings = [holding(0, 4)]
    assert await route.tokens() == [3, 4, 5, 6]
    (fill,) = (run for run in route.segments if run.flags & SEGMENT_FILL)
    assert (fill.start, fill.token_ids, fill.last_hop) == (0, (10, 11, 12, 3), 0)


async def test_what_is_left_of_the_old_route_is_closed_once_the_new_one_is_open() -> None:
    route = Route(mend_seconds=SECONDS)
    route.hops_of_next = (hop("w0", 0, 2), hop("w7", 2, 4))
    route.faults_at = {5: lost()}
    assert await route.tokens() == [3, 4, 5, 6]
    closes = [(to, body.epoch) for to, body in route.sent if isinstance(body, CloseBody)]
    assert closes == [("w1", EPOCH), ("w0", (2, 0))]


async def test_without_any_route_nothing_is_held_and_the_missing_layers_are_named() -> None:
    route = Route(mend_seconds=0.05)
    route.faults_at = {5: lost()}
    route.refuses = model_unavailable("of its layers 0-3, 2-3 have no ready worker.", 5)
    with pytest.raises(RouteLostError, match="2-3 have no ready worker"):
        await route.tokens()
    assert {to for to, body in route.sent if isinstance(body, CloseBody)} == {"w0", "w1"}
    assert len(route.heads) == 0


async def test_a_route_that_comes_back_in_time_is_gone_on_with() -> None:
    route = Route(mend_seconds=SECONDS)
    route.faults_at = {5: lost()}
    route.refuses = model_unavailable("of its layers 0-3, 2-3 have no ready worker.", 5)
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(route.tokens())
        await route.changes.until(lambda: len(route.reported) > 2)
        # Meanwhile nobody holds KV that others may wait for.
        assert {"w0", "w1"} <= set(route.closes)
        route.refuses = None
        assert await asking == [3, 4, 5, 6]


async def test_a_head_that_was_replaced_gives_up_at_once() -> None:
    route = Route(mend_seconds=SECONDS)
    route.faults_at = {5: lost()}
    route.refuses = not_found("It has another Head Worker now.")
    with pytest.raises(type(route.refuses)):
        await route.tokens()
    assert len(route.reported) == 1


async def test_a_route_that_fails_again_and_again_is_given_up() -> None:
    route = Route(mend_seconds=0.0)
    route.refusals = [lost(code="not_serving"), lost(code="not_serving")]
    with pytest.raises(HopFailedError, match="not_serving"):
        await route.tokens()
    assert len(route.openings) == 2


async def test_without_the_tracker_the_same_hops_are_tried_again() -> None:
    route = Route(mend_seconds=SECONDS)
    route.has_tracker = False
    route.faults_at = {5: lost()}
    assert await route.tokens() == [3, 4, 5, 6]
    assert [(body.ticket, body.rollback) for body in route.openings] == [
        (ROUTE.token, 0),
        (ROUTE.token, 1),
    ]


async def test_want_of_kv_while_it_is_mended_makes_it_wait_without_any() -> None:
    route = Route(wait_seconds=SECONDS, mend_seconds=SECONDS)
    route.faults_at = {5: lost()}
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(route.tokens())
        await route.changes.until(lambda: not route.faults_at)
        route.refusals = [fault()]
        assert await asking == [3, 4, 5, 6]
    assert len(route.openings) == 3
    assert {"w0", "w1"} <= set(route.closes)


async def test_a_session_leaves_a_hop_that_drains_without_stopping() -> None:
    route = Route(mend_seconds=SECONDS)
    route.hops_of_next = (hop("w0", 0, 2), hop("w7", 2, 4))
    async with asyncio.timeout(SECONDS):
        async with generating(route.heads) as tokens:
            route.answers = False
            await route.changes.until(lambda: route.openings)
            route.open(route.openings[0])
            route.heads.on_error(lost(code="draining"))
            await route.changes.until(lambda: len(route.openings) == 2)
            route.answers = True
            route.open(route.openings[1])
            assert [token async for token in tokens] == [3, 4, 5, 6]
    assert route.reported == [(HopFault(worker_id="w1", code="draining"),)]


async def test_a_session_stays_on_a_hop_that_drains_where_there_is_no_other() -> None:
    route = Route(mend_seconds=SECONDS)
    async with asyncio.timeout(SECONDS):
        async with generating(route.heads) as tokens:
            route.answers = False
            await route.changes.until(lambda: route.openings)
            route.open(route.openings[0])
            route.heads.on_error(lost(code="draining"))
            await route.changes.until(lambda: route.reported)
            route.answers = True
            route.run(route.segments[0])
            assert [token async for token in tokens] == [3, 4, 5, 6]
    assert len(route.openings) == 1


async def test_a_resumed_answer_goes_on_after_what_was_chosen_before() -> None:
    route = Route()
    one = generation()
    resumed = type(one)(
        session_id=one.session_id,
        epoch=EPOCH,
        prompt_ids=one.prompt_ids,
        max_new_tokens=4,
        end_ids=one.end_ids,
        min_new_tokens=0,
        chunk_tokens=128,
        chosen=[3, 4],
    )
    assert await route.tokens(resumed) == [5, 6]
    assert route.segments[0].token_ids == (10, 11, 12, 3, 4)


async def hear(route: Route, heard: list[int | None]) -> None:
    async with generating(route.heads) as tokens:
        async for token in tokens:
            heard.append(token)


async def test_signs_of_life_come_while_a_token_is_awaited_unless_the_head_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_tokens, "SIGN_SECONDS", 0.01)
    monkeypatch.setattr(head_driver, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(head_driver, "OPEN_SECONDS", 0.2)
    for is_stuck in (False, True):
        route = Route(is_stuck=is_stuck, answers=False)
        heard: list[int | None] = []
        with pytest.raises(head_session.RouteSilentError):
            await hear(route, heard)
        assert (None in heard) != is_stuck


async def test_a_session_that_is_handed_over_keeps_what_the_other_hops_hold() -> None:
    let_go: list[str] = []
    route = Route(let_go=let_go.append)
    async with generating(route.heads) as tokens:
        assert await anext(tokens) == 3
        route.heads.hand_over("s1")
        route.heads.hand_over("s9")
    assert (let_go, route.closes) == (["s1"], [])


async def test_a_request_that_fails_wherever_it_runs_does_not_visit_every_worker() -> None:
    route = Route(mend_seconds=1000.0)
    route.always_fails_at = {5: lost(code="engine_failed")}
    with pytest.raises(HopFailedError, match="engine_failed"):
        await route.tokens()
    assert len(route.openings) == head_session.MOST_ENGINE_FAULTS


@pytest.mark.parametrize("codes", [("engine_lost", "engine_failed"), ("engine_failed",) * 2])
async def test_a_request_with_which_the_engines_of_two_workers_fail_goes_to_no_third(
    codes: tuple[str, str],
) -> None:
    route = Route(mend_seconds=1000.0)
    one, other = (lost(f"w{place}", code) for place, code in enumerate(codes))
    route.faults_in_turn = {5: [one, other]}
    with pytest.raises(BlamedError, match="Worker w1"):
        await route.tokens()
    assert len(route.openings) == 2


async def test_workers_that_are_lost_blame_no_request() -> None:
    route = Route(mend_seconds=SECONDS)
    honest = [lost("w1"), lost("w1", "engine_lost"), lost("w0"), lost("w1", "peer_stalled")]
    route.faults_in_turn = {5: honest}
    assert await route.tokens() == [3, 4, 5, 6]


async def test_running_again_what_was_run_before_gives_no_session_more_time() -> None:
    route = Route(mend_seconds=0.05)
    route.always_fails_at = {6: lost(code="not_serving")}
    with pytest.raises(HopFailedError, match="not_serving"):
        async with asyncio.timeout(SECONDS):
            await route.tokens(generation(prompt_tokens=3, chunk_tokens=1))


async def test_a_ticket_that_crosses_what_it_was_to_mend_ends_nothing() -> None:
    route = Route(mend_seconds=SECONDS)
    route.faults_at = {5: lost()}
    route.refusals = [lost(code="bad_ticket")]
    route.refusals_begin_at = 2
    assert await route.tokens() == [3, 4, 5, 6]
    assert len(route.openings) == 3


async def test_an_answer_that_its_next_route_cannot_hold_goes_around_that_worker() -> None:
    small = KvFigures(needed=9, free=1, total=1, capacity=4)
    route = Route(mend_seconds=SECONDS)
    route.faults_at = {5: lost()}
    route.refusals = [fault("kv_capacity", kv=small)]
    route.refusals_begin_at = 2
    assert await route.tokens() == [3, 4, 5, 6]
    assert route.avoided == [frozenset(), {"w1"}]


async def test_a_head_that_was_replaced_while_it_waited_gives_up_at_once() -> None:
    route = Route(wait_seconds=SECONDS)
    route.refusals = [fault()]
    route.refuses = not_found("It has another Head Worker now.")
    with pytest.raises(type(route.refuses)):
        await route.tokens()
    assert len(route.openings) == 1


async def test_a_tracker_that_is_only_in_trouble_makes_nobody_let_go_of_kv() -> None:
    route = Route(mend_seconds=SECONDS)
    route.faults_at = {5: lost()}
    route.refuses = overloaded("The database is away.", 5)
    assert await route.tokens() == [3, 4, 5, 6]
    assert {body.ticket for body in route.openings} == {ROUTE.token}
