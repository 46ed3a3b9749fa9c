import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import aiohttp
import pytest
from aiohttp import web

from meshnet_common.edge.forwarding import Target, upstream_session
from meshnet_common.ids import WorkerId
from meshnet_common.openai.sse import data_event
from meshnet_common.protocol.resume import HeadStream
from meshnet_tracker.head_call import (
    HeadAnsweredError,
    HeadCall,
    HeadCutOffError,
    HeadFaultError,
)
from meshnet_tracker.under_way import AnswersUnderWay
from tests.tracker import heads
from tests.tracker.heads import STREAM, FakeHead, running_head

HEAD = WorkerId("w1")
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with upstream_session(idle_seconds=None) as session:
        yield session


async def read(
    session: aiohttp.ClientSession,
    head: FakeHead,
    answers: AnswersUnderWay | None = None,
    body: bytes = b'{"stream": true}',
) -> bytes:
    """What a client would get of one call, which must end by itself."""
    call = HeadCall(session, answers or AnswersUnderWay())
    target = Target(f"{head.url}/v1/chat/completions", body, JSON)
    data = b""
    async with asyncio.timeout(10), aclosing(call.blocks(HEAD, target, HeadStream())) as blocks:
        async for block in blocks:
            data += b"" if block.payload is None else data_event(block.payload)
    return data


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> float:
    """Silence becomes a fault so soon."""
    seconds = 0.3
    monkeypatch.setattr("meshnet_tracker.head_call.SILENCE_SECONDS", seconds)
    return seconds


async def test_the_blocks_come_in_order(session: aiohttp.ClientSession) -> None:
    async with running_head(heads.streams) as head:
        assert await read(session, head) == STREAM


@pytest.mark.parametrize(
    "behaviour",
    [
        heads.dies_before_it_answers,
        heads.dies_after(3),
        heads.writes_junk,
        heads.answers_without_streaming,
    ],
)
async def test_what_breaks_off_or_is_no_stream_is_a_fault(
    behaviour: heads.Behaviour, session: aiohttp.ClientSession
) -> None:
    async with running_head(behaviour) as head:
        with pytest.raises(HeadFaultError):
            await read(session, head)


async def test_nobody_there_is_a_fault(session: aiohttp.ClientSession) -> None:
    with pytest.raises(HeadFaultError):
        await read(session, FakeHead(heads.streams, "http://127.0.0.1:1"))


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("behaviour", [heads.hangs_before_it_answers, heads.hangs_after(3)])
async def test_silence_is_a_fault(
    behaviour: heads.Behaviour, session: aiohttp.ClientSession
) -> None:
    async with running_head(behaviour) as head:
        with pytest.raises(HeadFaultError, match=r"silent|answer"):
            await read(session, head)
        async with asyncio.timeout(5):
            await head.cancelled.wait()


async def test_one_that_shows_signs_of_life_may_take_its_time(
    session: aiohttp.ClientSession, silence: float
) -> None:
    async with running_head(heads.lives_after(1)) as head:
        asyncio.get_running_loop().call_later(4 * silence, head.go_on.set)
        assert await read(session, head) == STREAM


async def test_a_pause_of_this_process_is_not_held_against_anybody(
    session: aiohttp.ClientSession, silence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after a pause, every deadline is noticed too late.
    monkeypatch.setattr("meshnet_tracker.head_call.LATE_SECONDS", 0.0)
    async with running_head(heads.hangs_after(3)) as head:
        asyncio.get_running_loop().call_later(4 * silence, head.go_on.set)
        assert await read(session, head) == STREAM


async def test_one_that_was_found_lost_is_left_at_once(session: aiohttp.ClientSession) -> None:
    answers = AnswersUnderWay()
    async with running_head(heads.lives_after(1)) as head:
        asyncio.get_running_loop().call_later(0.2, answers.cut, HEAD)
        with pytest.raises(HeadCutOffError):
            await read(session, head, answers)


async def test_another_answer_is_told_whole(session: aiohttp.ClientSession) -> None:
    async with running_head(heads.is_overloaded) as head:
        with pytest.raises(HeadAnsweredError) as answered:
            await read(session, head)
    assert answered.value.answer.status == 503
    assert b"overloaded" in answered.value.answer.body


@pytest.mark.usefixtures("silence")
async def test_an_answer_without_an_end_is_a_fault(session: aiohttp.ClientSession) -> None:
    async def dribbles(head: FakeHead, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=400)
        await response.prepare(request)
        await head.go_on.wait()
        return response

    async with running_head(dribbles) as head:
        with pytest.raises(HeadFaultError):
            await read(session, head)


async def test_a_long_body_may_take_its_time(
    session: aiohttp.ClientSession, silence: float
) -> None:
    async with running_head(heads.hangs_before_it_answers) as head:
        asyncio.get_running_loop().call_later(4 * silence, head.go_on.set)
        assert await read(session, head, body=b'{"stream":true}' + b" " * (1 << 20)) == STREAM


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_nobody_is_led_elsewhere(session: aiohttp.ClientSession, status: int) -> None:
    async with running_head(heads.streams) as inner:

        async def leads_there(_head: FakeHead, request: web.Request) -> web.StreamResponse:
            where = f"{inner.url}{request.path}"
            return web.Response(status=status, headers={"Location": where})

        async with running_head(leads_there) as head:
            with pytest.raises(HeadFaultError):
                await read(session, head)
        assert inner.bodies == []
