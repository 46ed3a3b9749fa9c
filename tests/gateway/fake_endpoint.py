"""An OpenAI-compatible server that does as it is told at each moment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from meshnet_common.edge.serving import listening
from meshnet_common.openai.sse import DONE_EVENT, data_event
from tests.common.edge.upstreams import LOOPBACK, Script, events, hang_up

BODY = b'{"model": "smol"}'
STREAMED = b'{"model": "smol", "stream": true}'
STREAM = (data_event(b'{"n": 0}'), data_event(b'{"n": 1}'), DONE_EVENT)
WELL = events(*STREAM)


@dataclass
class FakeEndpoint:
    """It, what it answers now, what it lists, and what it was asked."""

    script: Script
    models: list[str] | None = None
    """What it lists; None has no list."""
    metrics: str = ""
    seen: list[web.Request] = field(default_factory=list)
    looks: list[web.Request] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    is_frozen: bool = False
    """Whether it takes connections and says nothing more; what it has begun stands still too."""
    is_deaf: bool = False
    """Whether it says nothing to looks only."""
    breaks_looks_off: bool = False
    thawed: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/{api:.+}", self._answer)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        return app

    async def _stand_still(self) -> None:
        """Wait for as long as it is frozen."""
        if self.is_frozen:
            await self.thawed.wait()

    async def _be_looked_at(self, request: web.Request) -> None:
        self.looks.append(request)
        await self._stand_still()
        if self.is_deaf:
            await self.thawed.wait()
        if self.breaks_looks_off:
            await hang_up(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        await request.read()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.arrived.set()
        try:
            await self._stand_still()
            return await self.script(request)
        except asyncio.CancelledError:
            self.left.set()
            raise
        finally:
            self.in_flight -= 1

    async def _models(self, request: web.Request) -> web.Response:
        await self._be_looked_at(request)
        if self.models is None:
            raise web.HTTPNotFound
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def _healthz(self, request: web.Request) -> web.Response:
        await self._be_looked_at(request)
        return web.Response()

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.metrics)


@asynccontextmanager
async def fake_endpoint(
    script: Script = WELL, models: list[str] | None = None, metrics: str = ""
) -> AsyncIterator[FakeEndpoint]:
    fake = FakeEndpoint(script, models, metrics)
    async with listening(fake.application(), LOOPBACK, 0) as fake.url:
        yield fake


def behind(gate: asyncio.Event, script: Script) -> Script:
    """Answer once the gate is open."""

    async def wait(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return await script(request)

    return wait
