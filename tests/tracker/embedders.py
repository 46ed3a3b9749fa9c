"""Small servers that play the part of Workers with an encoder, under a Tracker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import msgspec
from aiohttp import web

from meshnet_common.presets import ModelPreset
from meshnet_tracker.planning.snapshot import VariantKey
from meshnet_tracker.records import PresetRecord
from tests.tracker.builders import preset, shard
from tests.tracker.running import RunningTracker
from tests.tracker.served import served

WHERE = "/v1/embeddings"
BODY = {"model": "embedder", "input": ["a", "b"]}
ANSWER = {"object": "list", "data": [], "usage": {"prompt_tokens": 7, "total_tokens": 7}}
HANGS_UP, HANGS = 0, -1
"""In place of a status."""
KEY = VariantKey("embedder", "bfloat16")


class Embedder:
    """A small server that plays the part of a Worker with an encoder."""

    def __init__(self, *statuses: int) -> None:
        self.bodies: list[bytes] = []
        self.tickets: list[str] = []
        self.is_well = True
        """Whether it answers a Tracker that wonders."""
        self._statuses = list(statuses)

    async def embed(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.tickets.append(request.headers["x-meshnet-ticket"])
        assert "Authorization" not in request.headers
        status = self._statuses.pop(0) if self._statuses else 200
        if status == HANGS:
            await asyncio.Event().wait()
        if status == HANGS_UP:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        error = {"message": "No.", "type": "server_error", "param": None, "code": "draining"}
        return web.json_response(ANSWER if status == 200 else {"error": error}, status=status)

    async def healthz(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_well else 503)


def encoder() -> PresetRecord:
    record = preset("embedder", layers=1)
    model: ModelPreset = msgspec.structs.replace(record.preset, architecture="BertModel")
    return replace(record, preset=model)


@asynccontextmanager
async def embedding(
    tracker: RunningTracker, *embedders: Embedder, first: int = 0
) -> AsyncIterator[None]:
    """Serve the encoder on these; `first` numbers them behind others."""
    async with AsyncExitStack() as stack:
        for number, embedder in enumerate(embedders, first):
            app = web.Application()
            app.router.add_post(WHERE, embedder.embed)
            app.router.add_get("/healthz", embedder.healthz)
            url = await stack.enter_async_context(served(app))
            await tracker.serve(f"e{number}", url, shard(0, 1, model=KEY))
        yield
