"""A Tracker that only knows what a Gateway asks it, on loopback, and a Gateway in front."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from meshnet_common.edge.clock import Clock
from meshnet_common.edge.http import json_response, new_application
from meshnet_common.edge.serving import listening
from meshnet_common.openai.errors import ApiError, model_not_found
from meshnet_common.openai.responses import ListedModel, model_list
from tests.gateway.running import running, settings

LOOPBACK = "127.0.0.1"


@dataclass
class FakeMesh:
    """What one Tracker says: Head Workers or a refusal for each model, and what it was asked."""

    heads: dict[str, list[str]] = field(default_factory=dict)
    refusals: dict[str, ApiError] = field(default_factory=dict)
    is_ready: bool = True
    asked: list[web.Request] = field(default_factory=list)
    url: str = ""

    def application(self) -> web.Application:
        app = new_application()
        app.router.add_get("/v1/head-workers/{model}", self._head_workers)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/readyz", self._readyz)
        return app

    async def _head_workers(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        model = request.match_info["model"]
        if model in self.refusals:
            raise self.refusals[model]
        if model not in self.heads:
            raise model_not_found(model)
        return web.json_response({"endpoints": self.heads[model]})

    async def _models(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        models = [ListedModel(id=model, created=1, meshnet={"x": 1}) for model in self.heads]
        return json_response(model_list(models))

    async def _readyz(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_ready else 503)


@asynccontextmanager
async def mesh(**heads: list[str]) -> AsyncIterator[FakeMesh]:
    fake = FakeMesh(heads)
    async with listening(fake.application(), LOOPBACK, 0) as fake.url:
        yield fake


@asynccontextmanager
async def gateway(*trackers: str, clock: Clock | None = None) -> AsyncIterator[str]:
    """Serve what these Trackers' meshes serve; nobody but whoever asks is acknowledged early."""
    known = settings(meshes=trackers, ack_after_ms=60_000)
    async with running(known, clock) as one:
        yield one.url
