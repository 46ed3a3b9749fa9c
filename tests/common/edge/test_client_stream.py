import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web

from meshnet_common.edge.beside import beside
from meshnet_common.edge.client_stream import ClientStream
from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening
from meshnet_common.openai.sse import (
    DONE_EVENT,
    KEEP_ALIVE_COMMENT,
    accepted_comment,
    data_event,
    position_comment,
)

LOOPBACK = "127.0.0.1"
EVENT = data_event(b"{}")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Signs:
    ack_after_seconds: float = 0.0
    keep_alive_seconds: float = 60.0


PATIENT = Signs(ack_after_seconds=60.0)


@asynccontextmanager
async def answered_by(handler: Handler) -> AsyncIterator[aiohttp.ClientResponse]:
    app = new_application()
    app.router.add_get("/", handler)
    async with (
        asyncio.timeout(10),
        listening(app, LOOPBACK, 0) as url,
        aiohttp.ClientSession() as session,
        session.get(url) as response,
    ):
        yield response


async def test_the_headers_wait_for_the_first_bytes_and_may_be_told_with_them() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        stream = ClientStream(request, PATIENT)
        before = stream.is_open
        await stream.write(EVENT, {"x-told": "1", "Content-Type": "text/plain"})
        assert (before, stream.is_open) == (False, True)
        return await stream.close(DONE_EVENT)

    async with answered_by(handler) as response:
        assert (response.content_type, response.headers["x-told"]) == ("text/event-stream", "1")
        assert await response.read() == EVENT + DONE_EVENT


async def test_who_waits_hears_of_each_new_position_and_no_more_once_the_answer_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshnet_common.edge.client_stream.POSITION_SECONDS", 0.001)
    ahead, told = 2, asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        stream = ClientStream(request, Signs())
        async with beside(stream.keep_company(lambda: ahead)):
            await told.wait()
            stream.committed = True
            return await stream.close(EVENT)

    async with answered_by(handler) as response:
        assert await response.content.readline() == accepted_comment(2)
        ahead = 1
        assert await response.content.readline() == position_comment(1)
        told.set()
        assert await response.read() == EVENT


async def test_a_silent_stream_is_kept_alive() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        stream = ClientStream(request, Signs(keep_alive_seconds=0.001))
        await stream.write(EVENT)
        async with beside(stream.keep_company(lambda: 0)):
            await asyncio.Event().wait()
        raise AssertionError

    async with answered_by(handler) as response:
        assert await response.content.readexactly(len(EVENT)) == EVENT
        assert await response.content.readline() == KEEP_ALIVE_COMMENT
