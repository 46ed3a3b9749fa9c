"""One event stream to one client: opened late, never torn, with signs of life while it waits.

Admission has three stages (docs/running.md). A stream's headers wait for its first bytes, so that
what goes wrong before has a status of its own; a client that has waited for a while gets them with
a comment that says how many are before it, and errors as events from then on. What is given in one
piece is written in one piece.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog
from aiohttp import web

from meshnet_common.edge.clock import loop_time
from meshnet_common.edge.http import request_id
from meshnet_common.openai.sse import (
    KEEP_ALIVE_COMMENT,
    SSE_HEADERS,
    accepted_comment,
    position_comment,
)

LOOK_SECONDS = 30.0
"""A client that is to get more, and took nothing from one look to the next, is there no more."""
POSITION_SECONDS = 1.0
"""A client that waits hears at most this often that fewer are before it."""

_logger = structlog.get_logger()


class SignsOfLife(Protocol):
    """What a client that waits is shown, and when."""

    @property
    def ack_after_seconds(self) -> float:
        """It gets its headers after so long: errors have their own status before."""

    @property
    def keep_alive_seconds(self) -> float:
        """It is left without a sign for no longer than this."""


@dataclass(frozen=True, slots=True)
class Signs:
    """Such signs as they are given; ours unless somebody says otherwise."""

    ack_after_seconds: float = 1.0
    keep_alive_seconds: float = 10.0


SIGNS: SignsOfLife = Signs()


class ClientStream:
    """Server-sent events on their way to one client."""

    def __init__(self, request: web.Request, signs: SignsOfLife) -> None:
        self._request = request
        self._signs = signs
        self._response: web.StreamResponse | None = None
        self._wrote_at = loop_time()
        self._looking: asyncio.TimerHandle
        self._writing = asyncio.Lock()
        self.committed = False
        """Whether some of the answer is written, not only comments; whoever writes it says so."""

    @property
    def is_open(self) -> bool:
        """Whether status and headers are out."""
        return self._response is not None

    async def write(
        self, data: bytes, headers: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        """Write some whole events; the headers are for the first ones."""
        # A comment and an event may be due at once; each is written whole.
        async with self._writing:
            if self._response is None:
                self._response = web.StreamResponse(headers=headers)
                self._response.headers.update(SSE_HEADERS)
                await self._response.prepare(self._request)
            self._wrote_at = loop_time()
            if data:
                await self._taken(self._response.write(data))
            return self._response

    async def close(self, data: bytes) -> web.StreamResponse:
        """Write the last bytes."""
        response = await self.write(data)
        await self._taken(response.write_eof())
        return response

    async def keep_company(self, ahead: Callable[[], int]) -> None:
        """Acknowledge a request that takes a while, and show life from then on; never returns.

        `ahead` tells how many others are answered first.
        """
        await asyncio.sleep(self._signs.ack_after_seconds)
        told = ahead()
        if self._response is None:
            await self._comment(accepted_comment(told))
        while True:
            due = self._wrote_at + self._signs.keep_alive_seconds
            await asyncio.sleep(min(POSITION_SECONDS, max(0.0, due - loop_time())))
            if not self.committed and ahead() != told:
                told = ahead()
                await self._comment(position_comment(told))
            elif loop_time() >= self._wrote_at + self._signs.keep_alive_seconds:
                await self._comment(KEEP_ALIVE_COMMENT)

    async def _comment(self, comment: bytes) -> None:
        # Who is gone is noticed where the answer itself is written.
        with suppress(ConnectionResetError):
            await self.write(comment)

    async def _taken(self, writing: Awaitable[None]) -> None:
        """Wait while buffers are full, for as long as the client takes some of it."""
        self._look_later(math.inf)
        try:
            await writing
        finally:
            self._looking.cancel()

    def _look_later(self, unsent: float) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(LOOK_SECONDS, self._look, unsent)

    def _look(self, unsent: float) -> None:
        transport = self._request.transport
        if transport is None:
            return
        if (left := transport.get_write_buffer_size()) < unsent:
            self._look_later(left)
            return
        _logger.warning("client does not read", request_id=request_id(self._request))
        # Like a client that goes away: this ends the request, and so what answers it.
        transport.abort()
