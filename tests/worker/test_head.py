import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from meshnet_common.errors import TicketError
from meshnet_common.protocol.bodies import (
    ActivationFrame,
    ChosenToken,
    OpenBody,
    OpenedBody,
    ProgressBody,
    TokensBody,
)
from meshnet_worker import head_driver
from meshnet_worker.generation import RESERVE_POSITIONS
from meshnet_worker.head import Heads
from meshnet_worker.head_session import HopFailedError, RouteSilentError
from tests.worker.builders import GREEDY
from tests.worker.head_routes import EPOCH, ROUTE, Route, fault, generating, generation


async def test_tokens_come_in_order_until_the_answer_is_long_enough() -> None:
    route = Route()
    assert await route.tokens() == [3, 4, 5, 6]
    assert [(run.start, run.token_ids) for run in route.segments] == [
        (0, (10, 11, 12)),
        (3, (3,)),
        (4, (4,)),
        (5, (5,)),
    ]


async def test_a_session_that_is_open_is_not_opened_twice() -> None:
    route = Route()
    async with asyncio.timeout(5), generating(route.heads) as tokens:
        with pytest.raises(TicketError):
            await route.tokens()
        assert [token async for token in tokens] == [3, 4, 5, 6]
    assert await route.tokens() == [3, 4, 5, 6]


async def test_the_tail_learns_how_to_draw_and_the_hops_between_do_not() -> None:
    route = Route()
    await route.tokens()
    openings = [(to, body) for to, body in route.sent if isinstance(body, OpenBody)]
    assert [(to, body.sampling) for to, body in openings] == [("w1", GREEDY), ("w0", None)]
    assert all(body.ticket == ROUTE.token for _, body in openings)


async def test_every_segment_goes_to_the_first_hop_as_token_ids() -> None:
    route = Route()
    await route.tokens()
    frames = [(to, body) for to, body in route.sent if isinstance(body, ActivationFrame)]
    assert {to for to, _ in frames} == {"w0"}
    assert all(body.hidden == b"" and body.header.hidden_size == 0 for _, body in frames)


async def test_the_next_step_leaves_before_anybody_reads_the_token() -> None:
    route = Route()
    async with asyncio.timeout(5), generating(route.heads) as tokens:
        assert await anext(tokens) == 3
        assert [run.token_ids for run in route.segments[1:2]] == [(3,)]


async def test_a_long_prompt_keeps_to_its_credits() -> None:
    route = Route()
    route.credits = 2
    assert await route.tokens(generation(20, 1, chunk_tokens=3)) == [20]
    assert [run.start for run in route.segments] == list(range(0, 20, 3))


async def test_more_kv_is_reserved_along_the_route_before_it_runs_out() -> None:
    route = Route()
    one = generation(max_new_tokens=RESERVE_POSITIONS + 100)
    await route.tokens(one)
    reserved = [
        body.max_positions for to, body in route.sent if to == "w0" and isinstance(body, OpenBody)
    ]
    assert len(reserved) > 1
    assert reserved[-1] == one.limit


async def test_a_session_is_closed_on_every_hop_when_it_is_over() -> None:
    route = Route()
    await route.tokens()
    assert route.closes == ["w0"]
    assert len(route.heads) == 0


async def leave_after_a_token(route: Route) -> None:
    one = generation(max_new_tokens=1000)
    async with generating(route.heads, ROUTE, one) as tokens:
        await anext(tokens)
        route.answers = False
        raise ConnectionResetError


async def test_a_reader_who_leaves_early_closes_the_session_on_each_hop_directly() -> None:
    route = Route()
    with pytest.raises(ConnectionResetError):
        await leave_after_a_token(route)
    assert route.closes == ["w0", "w1"]


async def test_a_finished_session_is_closed_before_anybody_has_read_its_tokens() -> None:
    route = Route()
    async with generating(route.heads) as tokens:
        await route.changes.until(lambda: route.closes)
        assert [token async for token in tokens] == [3, 4, 5, 6]
    assert route.closes == ["w0"]


async def test_a_refused_opening_names_the_hop_and_closes_the_rest() -> None:
    route = Route()
    route.refusals = [fault("bad_ticket")]
    with pytest.raises(HopFailedError, match="Worker w1") as caught:
        await route.tokens()
    assert caught.value.code == "bad_ticket"
    assert route.closes == ["w0"]


async def test_a_fault_comes_after_the_tokens_that_came_before_it() -> None:
    route = Route()
    heard: list[int | None] = []

    async def read(tokens: AsyncIterator[int | None]) -> None:
        async for token in tokens:
            heard.append(token)
            route.answers = False

    async with asyncio.timeout(5), generating(route.heads) as tokens:
        asyncio.get_running_loop().call_later(0.02, route.heads.on_error, fault("bad_ticket"))
        with pytest.raises(HopFailedError, match="bad_ticket"):
            await read(tokens)
    assert heard[0] == 3


async def test_a_fault_of_no_session_is_not_this_heads() -> None:
    assert not Route().heads.on_error(fault())


async def test_a_fault_of_its_session_is_this_heads() -> None:
    route = Route()
    async with generating(route.heads):
        assert route.heads.on_error(fault())


async def test_a_route_that_nobody_opens_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_driver, "OPEN_SECONDS", 0.01)
    route = Route(answers=False)
    with pytest.raises(RouteSilentError):
        await route.tokens()
    assert len(route.openings) == 2
    assert route.closes == ["w0", "w1"]


async def test_a_route_that_falls_silent_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_driver, "SILENCE_SECONDS", 0.01)
    monkeypatch.setattr(head_driver, "OPEN_SECONDS", 0.01)
    route = Route()
    async with generating(route.heads) as tokens:
        assert await anext(tokens) == 3
        route.answers = False
        with pytest.raises(RouteSilentError):
            [token async for token in tokens]
    assert route.closes == ["w0", "w1"]


LATE: list[Callable[[Heads], object]] = [
    lambda heads: heads.on_opened(OpenedBody(session_id="s1", epoch=EPOCH, held=(), credits=1)),
    lambda heads: heads.on_tokens(TokensBody(tokens=(ChosenToken("s1", EPOCH, 3, 3),))),
    lambda heads: heads.on_progress(ProgressBody(session_id="s1", epoch=EPOCH, position=3)),
]


@pytest.mark.parametrize("late", LATE, ids=["opened", "tokens", "progress"])
async def test_what_comes_for_a_session_that_is_over_is_passed_over(
    late: Callable[[Heads], object],
) -> None:
    route = Route()
    await route.tokens()
    sent = len(route.sent)
    late(route.heads)
    assert len(route.sent) == sent


async def test_repeated_and_stale_tokens_feed_nothing() -> None:
    route = Route()
    async with generating(route.heads) as tokens:
        assert await anext(tokens) == 3
        before = len(route.segments)
        for position, epoch in ((3, EPOCH), (99, EPOCH), (4, (9, 0))):
            stale = ChosenToken("s1", epoch, position, 77)
            route.heads.on_tokens(TokensBody(tokens=(stale,)))
        assert len(route.segments) == before
        assert [token async for token in tokens] == [4, 5, 6]


async def test_a_peer_that_tells_of_progress_for_ever_fills_nothing() -> None:
    route = Route()
    async with generating(route.heads) as tokens:
        for _ in range(1000):
            route.heads.on_progress(ProgressBody(session_id="s1", epoch=EPOCH, position=3))
        assert [token async for token in tokens] == [3, 4, 5, 6]


async def test_welcomes_that_repeat_change_nothing() -> None:
    route = Route()
    async with generating(route.heads) as tokens:
        for _ in range(3):
            route.heads.on_opened(OpenedBody(session_id="s1", epoch=EPOCH, held=(), credits=1))
        assert [token async for token in tokens] == [3, 4, 5, 6]
