"""Sessions of a Head Worker that got no KV, or lost it: their readers see only time."""

import asyncio

import msgspec
import pytest

from meshnet_common.protocol.bodies import ChosenToken, KvFigures, OpenBody, TokensBody
from meshnet_worker import head_tokens
from meshnet_worker.head_session import HopFailedError, NoRoomError
from tests.common.builders import ticket
from tests.worker.builders import GREEDY
from tests.worker.head_routes import (
    EPOCH,
    FULL,
    ROUTE,
    Route,
    fault,
    generating,
    generation,
    signed,
)
from tests.worker.waiting import SECONDS

SECOND = signed(ticket(session_id="s2", admission_seq=2))


async def test_a_refused_session_is_opened_again_under_a_fresh_ticket() -> None:
    route = Route(wait_seconds=SECONDS)
    route.refusals = [fault(), fault()]
    assert await route.tokens() == [3, 4, 5, 6]
    assert len({body.ticket for body in route.openings}) == 3
    assert route.avoided == [{"w1"}, {"w1"}]
    assert route.closes.count("w0") == 3


async def test_a_preempted_session_goes_on_where_it_was() -> None:
    route = Route(wait_seconds=SECONDS)
    route.faults_at = {5: fault("kv_preempted", epoch=EPOCH)}
    assert await route.tokens() == [3, 4, 5, 6]
    again = [run for run in route.segments if run.epoch > EPOCH]
    assert [(run.epoch, run.start, run.token_ids) for run in again] == [
        ((2, 0), 0, (10, 11, 12, 3, 4)),
        ((2, 0), 5, (5,)),
    ]


async def test_it_is_closed_at_once_whether_or_not_anybody_reads() -> None:
    route = Route(wait_seconds=SECONDS)
    route.faults_at = {4: fault("kv_preempted")}
    async with generating(route.heads) as tokens:
        assert await anext(tokens) == 3
        await asyncio.sleep(0)
        assert (route.closes, route.heads.waiting) == (["w0"], 1)
    assert (route.closes, route.heads.waiting) == (["w0"], 0)


async def test_a_fault_of_an_earlier_opening_is_passed_over() -> None:
    route = Route(wait_seconds=SECONDS)
    route.refusals = [fault(epoch=EPOCH)]
    async with asyncio.timeout(SECONDS):
        async with generating(route.heads) as tokens:
            assert await anext(tokens) == 3
            assert route.heads.on_error(fault("kv_preempted", epoch=EPOCH))
            assert route.heads.on_error(fault("peer_lost", epoch=EPOCH))
            assert [token async for token in tokens] == [4, 5, 6]


async def test_a_welcome_of_an_earlier_opening_is_passed_over() -> None:
    route = Route(wait_seconds=SECONDS, answers=False)
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(route.tokens())
        await route.changes.until(lambda: route.openings)
        (stale,) = route.openings
        route.heads.on_error(fault())
        await route.changes.until(lambda: len(route.openings) == 2)
        route.open(stale)
        assert route.segments == []
        route.answers = True
        route.open(route.openings[-1])
        assert await asking == [3, 4, 5, 6]


async def test_a_token_that_crossed_the_fault_is_kept() -> None:
    route = Route(wait_seconds=SECONDS)
    route.faults_at = {4: fault("kv_preempted")}
    async with asyncio.timeout(SECONDS):
        async with generating(route.heads) as tokens:
            assert await anext(tokens) == 3
            await asyncio.sleep(0)
            crossing = ChosenToken("s1", EPOCH, 4, 44)
            route.heads.on_tokens(TokensBody(tokens=(crossing,)))
            assert [token async for token in tokens] == [44, 5, 6]
    assert route.segments[-2].token_ids == (10, 11, 12, 3, 44)


async def test_without_the_tracker_a_fresh_ticket_is_used_again_with_a_higher_rollback() -> None:
    route = Route(wait_seconds=SECONDS)
    route.has_tracker = False
    route.refusals = [fault(), fault()]
    assert await route.tokens() == [3, 4, 5, 6]
    assert [(body.ticket, body.rollback) for body in route.openings] == [
        (ROUTE.token, 0),
        (ROUTE.token, 1),
        (ROUTE.token, 2),
    ]


async def test_without_the_tracker_and_a_fresh_ticket_it_waits() -> None:
    route = Route(wait_seconds=0.3)
    route.has_tracker = False
    route.refusals = [fault()]
    route.clock.advance(1000)
    with pytest.raises(NoRoomError):
        await route.tokens()
    assert len(route.openings) == 1


async def test_who_waits_too_long_ends_with_the_numbers() -> None:
    route = Route(wait_seconds=0)
    route.refusals = [fault(kv=FULL)]
    with pytest.raises(NoRoomError, match="Worker w1: full"):
        await route.tokens()
    assert route.heads.waiting == 0


async def test_signs_of_life_come_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_tokens, "SIGN_SECONDS", 0.01)
    route = Route(wait_seconds=SECONDS)
    route.refusals = [fault()]
    heard = await route.tokens()
    assert None in heard
    assert [token for token in heard if token is not None] == [3, 4, 5, 6]


async def test_a_reader_who_leaves_while_it_waits_leaves_the_queue_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_tokens, "SIGN_SECONDS", 0.01)
    route = Route(wait_seconds=SECONDS)
    route.refusals = [fault()]
    async with generating(route.heads) as tokens:
        assert await anext(tokens) is None
        assert route.heads.waiting == 1
    assert (route.heads.waiting, len(route.heads)) == (0, 0)


async def test_who_comes_later_waits_behind_and_follows_at_once() -> None:
    route = Route(wait_seconds=SECONDS)
    route.refusals = [fault()]
    order: list[str] = []

    async def ask(name: str) -> None:
        one = generation(session_id=name)
        heard = await route.tokens(one, ROUTE if name == "s1" else SECOND)
        assert heard == [3, 4, 5, 6]
        order.append(name)

    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(ask("s1"))
        await route.changes.until(lambda: route.heads.waiting)
        tasks.create_task(ask("s2"))
        await asyncio.sleep(0)
        assert route.heads.waiting == 2
    assert order == ["s1", "s2"]
    assert len(route.openings) == 3


async def test_kv_that_is_freed_here_ends_the_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshnet_worker.waiting_room.FIRST_BACK_OFF_SECONDS", 1000.0)
    route = Route(wait_seconds=SECONDS)
    route.refusals = [fault()]
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(route.tokens())
        await route.changes.until(lambda: route.heads.waiting)
        route.heads.on_freed()
        assert await asking == [3, 4, 5, 6]


def too_large(capacity: int) -> KvFigures:
    return KvFigures(needed=9, free=1, total=1, capacity=capacity)


async def test_a_prompt_that_could_never_fit_is_refused_with_the_next_routes_numbers() -> None:
    route = Route(wait_seconds=SECONDS)
    route.refusals = [fault("kv_capacity", kv=too_large(capacity)) for capacity in (1, 2)]
    with pytest.raises(HopFailedError) as caught:
        await route.tokens(generation(prompt_tokens=3))
    assert caught.value.kv == too_large(2)
    assert len(route.openings) == 2


async def test_a_prompt_goes_around_a_worker_that_is_too_small_for_it() -> None:
    route = Route(wait_seconds=SECONDS)
    small = fault("kv_capacity", kv=too_large(2))
    cuts = msgspec.structs.replace(fault("kv_capacity", kv=too_large(5)), worker_id="w2")
    full = msgspec.structs.replace(fault(), worker_id="w3")
    route.refusals = [small, cuts, full]
    assert await route.tokens(generation(prompt_tokens=3, max_new_tokens=100)) == [3, 4, 5]
    # Whom a smaller reservation fits is not avoided; who is too small always is.
    assert route.avoided == [{"w1"}, {"w1"}, {"w1", "w3"}]


async def test_a_reservation_beyond_the_pools_is_cut_and_tried_again_at_once() -> None:
    route = Route()
    route.refusals = [fault("kv_capacity", kv=too_large(5))]
    assert await route.tokens(generation(prompt_tokens=3, max_new_tokens=100)) == [3, 4, 5]
    assert [body.max_positions for body in route.openings] == [67, 5]


async def test_an_answer_ends_where_the_routes_memory_ends() -> None:
    route = Route()
    route.capacity = 5
    one = generation(prompt_tokens=3, max_new_tokens=100)
    assert await route.tokens(one) == [3, 4, 5]
    assert not one.ended_by_model


async def test_an_answer_that_has_outgrown_shrunken_pools_ends_there() -> None:
    route = Route()
    route.faults_at = {6: fault("kv_capacity", kv=too_large(4))}
    assert await route.tokens(generation(prompt_tokens=3, max_new_tokens=100)) == [3, 4, 5]
    assert len(route.openings) == 1


async def test_drawing_is_told_again_with_every_opening() -> None:
    route = Route(wait_seconds=SECONDS)
    route.refusals = [fault()]
    await route.tokens()
    told = [body for to, body in route.sent if to == "w1" and isinstance(body, OpenBody)]
    assert [(body.ticket, body.sampling) for body in told] == [
        (body.ticket, GREEDY) for body in route.openings
    ]
