"""A small HTTP server that plays the Head Worker's part, well or badly."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from multidict import CIMultiDictProxy

EVENTS = (
    b': keep-alive\ndata: {"choices":[{"delta":{"content":"He"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"llo"}}]}\n\n',
)
DONE = b"data: [DONE]\n\n"

Behaviour = Callable[["FakeHead", web.Request], Awaitable[web.StreamResponse]]


@dataclass
class FakeHead:
    """What it was asked, and what a test wants it to wait for or to know."""

    behaviour: Behaviour
    url: str = ""
    headers: list[CIMultiDictProxy[str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers)
        self.bodies.append(await request.read())
        try:
            return await self.behaviour(self, request)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@asynccontextmanager
async def running_head(behaviour: Behaviour) -> AsyncIterator[FakeHead]:
    head = FakeHead(behaviour)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", head.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    head.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield head
    finally:
        await runner.cleanup()


async def open_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def streams(_head: FakeHead, request: web.Request) -> web.StreamResponse:
    response = await open_stream(request)
    for event in (*EVENTS, DONE):
        await response.write(event)
    return response


async def answers_whole(_head: FakeHead, _request: web.Request) -> web.StreamResponse:
    return web.json_response({"object": "chat.completion"}, headers={"x-own": "kept"})


async def refuses_ticket(_head: FakeHead, _request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"code": "invalid_ticket"}}, status=403)


async def is_overloaded(_head: FakeHead, _request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"code": "overloaded"}}, status=503)


async def dies_before_it_answers(_head: FakeHead, request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def dies_after_a_comment(_head: FakeHead, request: web.Request) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(b": keep-alive\n")
    return await _abort(request, response)


async def dies_in_mid_event(head: FakeHead, request: web.Request) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(EVENTS[0] + b'data: {"choi')
    await head.go_on.wait()
    return await _abort(request, response)


async def ends_without_done(_head: FakeHead, request: web.Request) -> web.StreamResponse:
    response = await open_stream(request)
    for event in EVENTS:
        await response.write(event)
    return response


async def hangs_before_it_answers(head: FakeHead, _request: web.Request) -> web.StreamResponse:
    await head.go_on.wait()
    return web.Response()


async def hangs_in_mid_stream(head: FakeHead, request: web.Request) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(EVENTS[0])
    await head.go_on.wait()
    return response


async def _abort(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return response
