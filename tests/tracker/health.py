"""A small HTTP server that a Tracker asks whether it lives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.tracker.served import served

Condition = Callable[["FakeWorker", web.Request], Awaitable[web.StreamResponse]]


@dataclass
class FakeWorker:
    """In which condition it is now, how often it was asked, and what it waits for."""

    condition: Condition
    url: str = ""
    asked: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        return await self.condition(self, request)


@asynccontextmanager
async def fake_worker(condition: Condition) -> AsyncIterator[FakeWorker]:
    worker = FakeWorker(condition)
    app = web.Application()
    app.router.add_get("/healthz", worker.healthz)
    async with served(app) as worker.url:
        yield worker


async def is_well(_worker: FakeWorker, _request: web.Request) -> web.StreamResponse:
    return web.json_response({"status": "alive"})


async def is_overdue(_worker: FakeWorker, _request: web.Request) -> web.StreamResponse:
    return web.json_response({"overdue_seconds": 4.0}, status=503)


async def is_frozen(worker: FakeWorker, _request: web.Request) -> web.StreamResponse:
    await worker.go_on.wait()
    return web.Response()


async def points_elsewhere(_worker: FakeWorker, _request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/elsewhere")


async def sends_endless_headers(_worker: FakeWorker, _request: web.Request) -> web.StreamResponse:
    return web.Response(headers={"x-long": "x" * 100_000})


async def never_ends_its_answer(_worker: FakeWorker, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65536)
