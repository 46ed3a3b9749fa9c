"""Several Trackers over one database: servers with one memory, each with faults of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from meshnet_common.edge.http import error_response
from meshnet_common.edge.serving import listening
from meshnet_common.openai.errors import ApiError, ErrorBody
from meshnet_common.presets import ModelPreset
from tests.worker.small_tracker import SmallTracker


class Door:
    """One of the Trackers: an address of its own, and what has become of it."""

    def __init__(self, database: SmallTracker) -> None:
        self.url = ""
        self.calls: list[str] = []
        """Paths, in the order in which they came."""
        self._database = database
        self._fault: Callable[[web.Request], web.Response] | None = None
        self._is_frozen = False
        self._slow_seconds = 0.0
        self._open: set[asyncio.Transport] = set()

    def kill(self) -> None:
        """Cut what runs, and every later call."""
        self._fault = _cut
        for transport in self._open:
            transport.abort()

    def freeze(self) -> None:
        """Take calls and answer none, those that run neither."""
        self._is_frozen = True

    def slow_down(self, seconds: float) -> None:
        """Answer each call, but so late."""
        self._slow_seconds = seconds

    def refuse(self, status: int, code: str | None = None) -> None:
        self._fault = lambda _: error_response(
            ApiError(status, ErrorBody("Not now.", "server_error", None, code))
        )

    def recover(self) -> None:
        self._fault = None

    def application(self) -> web.Application:
        app = self._database.application()
        app.middlewares.append(self._pass_on)
        return app

    @web.middleware
    async def _pass_on(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.calls.append(request.path)
        self._database.changes.tell()
        await self._while_frozen()
        await asyncio.sleep(self._slow_seconds)
        if self._fault is not None:
            return self._fault(request)
        transport = request.transport
        assert transport is not None
        self._open.add(transport)
        try:
            return await handler(request)
        finally:
            self._open.discard(transport)
            await self._while_frozen()

    async def _while_frozen(self) -> None:
        if self._is_frozen:
            await asyncio.Event().wait()


def _cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@asynccontextmanager
async def several_trackers(
    count: int, preset: ModelPreset | None = None
) -> AsyncIterator[tuple[SmallTracker, list[Door]]]:
    """Run so many; what they share is the first value."""
    database = SmallTracker(preset)
    doors = [Door(database) for _ in range(count)]
    async with AsyncExitStack() as stack:
        for door in doors:
            door.url = await stack.enter_async_context(
                listening(door.application(), "127.0.0.1", 0)
            )
        database.url = doors[0].url
        yield database, doors
