"""The one answer to a client, over as many Head Workers as it takes: streamed or whole.

Admission has three stages (docs/running.md). A stream's headers wait for its first event, so that
what goes wrong before has a status of its own; a client that has waited for a while gets them with
a comment that says how many are before it, and errors as events from then on. An event that was
begun is always written whole.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import structlog
from aiohttp import web

from meshnet_common.edge.clock import loop_time
from meshnet_common.edge.forwarding import WholeAnswer, end_to_end
from meshnet_common.edge.http import json_response, open_event_stream, request_id
from meshnet_common.openai.errors import SERVER_ERROR, ApiError, ErrorBody, ErrorEnvelope
from meshnet_common.openai.sse import (
    KEEP_ALIVE_COMMENT,
    accepted_comment,
    data_event,
    position_comment,
)
from meshnet_common.openai.stream_endings import StreamEnding
from meshnet_tracker.tries import ProxyPolicy

LOOK_SECONDS = 30.0
"""A client that is to get more, and took nothing from one look to the next, is there no more."""
POSITION_SECONDS = 1.0
"""A client that waits hears at most this often that fewer are before it."""

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Ending:
    """An error that ends an answer: the JSON of its envelope, and how it looks as HTTP."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def error(self) -> ErrorBody:
        """What it says; nothing, if it is not in the shape of our errors."""
        try:
            return msgspec.json.decode(self.body, type=ErrorEnvelope).error
        except (msgspec.DecodeError, RecursionError):
            return ErrorBody("", SERVER_ERROR)

    @classmethod
    def of(cls, error: ApiError) -> "Ending":
        return cls(error.status, error.to_json(), error.headers)

    @classmethod
    def as_answered(cls, answer: WholeAnswer) -> "Ending":
        """Pass on what a Head Worker answered in place of a stream."""
        return cls(answer.status, answer.body, end_to_end(answer.headers))

    def response(self) -> web.Response:
        response = web.Response(status=self.status, body=self.body, headers=self.headers)
        if "content-type" not in map(str.lower, self.headers):
            response.content_type = "application/json"
        return response


class StreamedAnswer:
    """Server-sent events, passed on as they come."""

    def __init__(self, request: web.Request, policy: ProxyPolicy, ending: StreamEnding) -> None:
        self._request = request
        self._policy = policy
        self._ending = ending
        self._events = 0
        self._response: web.StreamResponse | None = None
        self._wrote_at = loop_time()
        self._looking: asyncio.TimerHandle
        self._writing = asyncio.Lock()
        self.committed = False
        """Whether the client has got some of the answer."""

    async def deliver(self, payload: bytes) -> None:
        """Write one event."""
        self.committed = True
        self._events += 1
        await self._write(data_event(payload))

    async def keep_company(self, ahead: Callable[[], int]) -> None:
        """Acknowledge a request that takes a while, and show life from then on; never returns.

        `ahead` tells how many others are answered first.
        """
        await asyncio.sleep(self._policy.ack_after_seconds)
        told = ahead()
        if self._response is None:
            await self._comment(accepted_comment(told))
        while True:
            due = self._wrote_at + self._policy.keep_alive_seconds
            await asyncio.sleep(min(POSITION_SECONDS, max(0.0, due - loop_time())))
            if not self.committed and ahead() != told:
                told = ahead()
                await self._comment(position_comment(told))
            elif loop_time() >= self._wrote_at + self._policy.keep_alive_seconds:
                await self._comment(KEEP_ALIVE_COMMENT)

    async def end(self) -> web.StreamResponse:
        return await self._close(self._ending.done)

    async def fail(self, ending: Ending) -> web.StreamResponse:
        """End with an error: its own status, or an event if the headers are out."""
        if self._response is None:
            return ending.response()
        return await self._close(self._ending.failed(ending.body, self._events))

    async def _close(self, data: bytes) -> web.StreamResponse:
        response = await self._write(data)
        await self._taken(response.write_eof())
        return response

    async def _comment(self, comment: bytes) -> None:
        # Who is gone is noticed where the answer itself is written.
        with suppress(ConnectionResetError):
            await self._write(comment)

    async def _write(self, data: bytes) -> web.StreamResponse:
        # A comment and an event may be due at once; each is written whole.
        async with self._writing:
            if self._response is None:
                self._response = await open_event_stream(self._request)
            self._wrote_at = loop_time()
            if data:
                await self._taken(self._response.write(data))
            return self._response

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


class CollectedAnswer:
    """One JSON body, sent when the answer is whole."""

    def __init__(self) -> None:
        self._payload: bytes | None = None

    @property
    def committed(self) -> bool:
        """Whether the answer is here."""
        return self._payload is not None

    async def deliver(self, payload: bytes) -> None:
        """Keep the last event: it is the whole answer."""
        self._payload = payload

    async def keep_company(self, ahead: Callable[[], int]) -> None:
        """Do nothing: whoever wants one body can see nothing before it."""
        del ahead

    async def end(self) -> web.StreamResponse:
        assert self._payload is not None
        return json_response(self._payload)

    async def fail(self, ending: Ending) -> web.StreamResponse:
        """End with an error."""
        return ending.response()


ClientAnswer = StreamedAnswer | CollectedAnswer
