import asyncio

import pytest

from meshnet_common.edge.clock import loop_time
from meshnet_common.errors import TicketError
from meshnet_common.protocol.bodies import CloseBody
from meshnet_worker.head_session import HopFailedError, NoRoomError
from meshnet_worker.head_tokens import Asked, Tokens
from meshnet_worker.tickets import SignedRoute
from tests.common.builders import ticket, token_of
from tests.worker.builders import GREEDY, RecordingRoom
from tests.worker.head_routes import FULL, ROUTE, Route, fault, generation
from tests.worker.running import PlayedEngine, running_workers
from tests.worker.waiting import SECONDS


def asked(choice: int, max_new_tokens: int = 4) -> Asked:
    route = ROUTE.of_choice(choice)
    one = generation(max_new_tokens=max_new_tokens, session_id=route.ticket.session_id)
    return Asked(route, one, GREEDY)


async def read(tokens: Tokens) -> dict[str, list[int]]:
    got: dict[str, list[int]] = {}
    async with asyncio.timeout(SECONDS):
        async for token in tokens:
            if token is not None:
                got.setdefault(token.session_id, []).append(token.token_id)
    return got


async def test_the_tokens_of_each_choice_come_in_order() -> None:
    route = Route()
    async with route.heads.generating(asked(0), asked(1, 2), asked(2, 3)) as tokens:
        got = await read(tokens)
    assert got == {"s1": [3, 4, 5, 6], "s1.1": [3, 4], "s1.2": [3, 4, 5]}


async def test_every_opening_says_which_choice_it_is() -> None:
    route = Route()
    async with route.heads.generating(asked(0), asked(3)) as tokens:
        await read(tokens)
    assert [body.choice for body in route.openings] == [0, 3]
    assert {body.ticket for body in route.openings} == {ROUTE.token}


async def test_what_is_left_is_closed_and_the_others_go_on() -> None:
    route = Route()
    async with route.heads.generating(asked(0), asked(1)) as tokens:
        first = await anext(tokens)
        assert first is not None
        tokens.leave(first.session_id)
        tokens.leave(first.session_id)
        assert len(route.heads) == 1
        (other,) = {"s1", "s1.1"} - {first.session_id}
        assert await read(tokens) == {other: [3, 4, 5, 6]}
    assert len(route.heads) == 0
    closed = {body.session_id for _, body in route.sent if isinstance(body, CloseBody)}
    assert closed == {"s1", "s1.1"}


async def test_a_fault_of_what_was_left_is_nobodys() -> None:
    route = Route()
    route.always_fails_at = {4: fault("kv_capacity", "s1.1", kv=None)}
    async with route.heads.generating(asked(0), asked(1)) as tokens:
        tokens.leave("s1.1")
        assert not route.heads.on_error(fault("kv_capacity", "s1.1", kv=FULL))
        tokens.leave("s1")
        assert await read(tokens) == {}


async def test_a_fault_of_one_choice_ends_the_answer() -> None:
    route = Route()
    route.faults_at = {4: fault("bad_ticket", "s1.1")}
    with pytest.raises(HopFailedError):
        async with route.heads.generating(asked(1), asked(0)) as tokens:
            await read(tokens)
    assert len(route.heads) == 0


async def test_a_choice_that_is_open_already_is_refused_with_all_others() -> None:
    route = Route()
    async with route.heads.generating(asked(1)):
        with pytest.raises(TicketError):
            async with route.heads.generating(asked(0), asked(1)):
                pass
        assert len(route.heads) == 1


async def test_nothing_that_is_missing_is_nothing_to_read() -> None:
    async with Route().heads.generating() as tokens:
        assert await read(tokens) == {}


async def test_a_choice_waits_for_the_others_of_its_answer_as_long_as_they_run() -> None:
    route = Route(wait_seconds=0.05)
    route.refusals = [fault("kv_exhausted", "s1.1")] * 1000
    route.refusals_begin_at = 2
    route.credits = 0
    began = loop_time()
    async with route.heads.generating(asked(0), asked(1)) as tokens:
        # It would have given up long before.
        await route.changes.until(lambda: loop_time() > began + 4 * 0.05)
        assert route.heads.waiting == 1
        tokens.leave("s1")
        with pytest.raises(NoRoomError):
            await read(tokens)


async def test_choices_share_the_workers_of_their_route_and_leave_nothing() -> None:
    async with running_workers(RecordingRoom("w0"), RecordingRoom("w1")) as (head, tail):
        for worker in (head, tail):
            PlayedEngine(worker)
        claims = ticket(head.hop(0, 2), tail.hop(2, 4))
        route = SignedRoute(claims, token_of(claims))
        ones = [generation(session_id=claims.of_choice(k).session_id) for k in range(3)]
        asking = [Asked(route.of_choice(k), one, GREEDY) for k, one in enumerate(ones)]
        async with head.heads.generating(*asking) as tokens:
            assert await read(tokens) == {one.session_id: [3, 4, 5, 6] for one in ones}
        await head.changes.until(lambda: head.is_as_before)
        await tail.changes.until(lambda: tail.is_as_before)
        assert len(tail.recording.runs) >= len(ones)
