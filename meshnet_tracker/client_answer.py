"""The one answer to a client, over as many Head Workers as it takes: streamed or whole.

What goes wrong before a stream was opened (`edge.client_stream`) has a status of its own; errors
are events from then on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from meshnet_common.edge.client_stream import ClientStream
from meshnet_common.edge.forwarding import WholeAnswer, end_to_end
from meshnet_common.edge.http import json_response
from meshnet_common.openai.errors import SERVER_ERROR, ApiError, ErrorBody, ErrorEnvelope
from meshnet_common.openai.sse import data_event
from meshnet_common.openai.stream_endings import StreamEnding
from meshnet_tracker.tries import ProxyPolicy


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
        self._stream = ClientStream(request, policy)
        self._ending = ending
        self._events = 0

    @property
    def committed(self) -> bool:
        """Whether the client has got some of the answer."""
        return self._stream.committed

    async def deliver(self, payload: bytes) -> None:
        """Write one event."""
        self._stream.committed = True
        self._events += 1
        await self._stream.write(data_event(payload))

    async def keep_company(self, ahead: Callable[[], int]) -> None:
        """Acknowledge a request that takes a while, and show life from then on; never returns.

        `ahead` tells how many others are answered first.
        """
        await self._stream.keep_company(ahead)

    async def end(self) -> web.StreamResponse:
        return await self._stream.close(self._ending.done)

    async def fail(self, ending: Ending) -> web.StreamResponse:
        """End with an error: its own status, or an event if the headers are out."""
        if not self._stream.is_open:
            return ending.response()
        return await self._stream.close(self._ending.failed(ending.body, self._events))


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
