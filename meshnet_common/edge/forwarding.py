"""Passing a request on to another program and its answer back, byte for byte.

Nothing of an event stream is parsed or rewritten; only event boundaries are watched. Until the
first `data:` event has been passed on, a failed upstream is invisible to the client and the caller
may try another one; from then on the failure ends the stream with an error event, as the API has
them (`openai.stream_endings`), never with a silent end.

    answer = ForwardedAnswer(request, api.ending)
    for target in targets:                                    # the caller's own policy
        try:
            return await answer.forward(session, target)
        except UpstreamError as error:
            last = error                                      # nothing was committed: try the next
    return await answer.fail(upstream_failed("..."))          # or: answer.give_up(last)

A client that goes away cancels the handler, and with it the request to the upstream.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp
import msgspec
import structlog
from aiohttp import hdrs, web

from meshnet_common.edge.client_stream import SIGNS, ClientStream, SignsOfLife
from meshnet_common.edge.http import REQUEST_ID_HEADER, error_response, request_id
from meshnet_common.errors import MeshnetError
from meshnet_common.openai import errors
from meshnet_common.openai.errors import ApiError, ErrorEnvelope
from meshnet_common.openai.sse import EventBoundaries, EventTooLongError
from meshnet_common.openai.stream_endings import DoneEnding, StreamEnding

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 300.0
"""Longest silence of an upstream whose life is not watched in another way."""

MAX_WHOLE_ANSWER_BYTES = 64 << 20

NO_ANSWER = (aiohttp.ClientError, TimeoutError, UnicodeError)
"""What asking another program may raise; the last for a host name that no codec takes."""

# An upstream that answers so has not begun to work; another one may do better.
_REFUSAL_STATUSES = frozenset({502, 503})

DONE_ENDING: StreamEnding = DoneEnding()

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_SET_ANEW = frozenset(
    {"host", "content-length", "content-encoding", "accept-encoding", "server", "date", "expect"}
)
_PRIVATE = frozenset({"authorization", "cookie"})
_OWN_PREFIX = "x-meshnet-"

_logger = structlog.get_logger()


class UpstreamError(MeshnetError):
    """The upstream gave no answer that could be passed on."""


class UpstreamUnreachableError(UpstreamError):
    """The upstream could not be reached, or hung up before its answer began."""


class UpstreamRefusedError(UpstreamError):
    """The upstream answered that it cannot serve now."""

    def __init__(self, refusal: "WholeAnswer") -> None:
        super().__init__(f"HTTP {refusal.status}.")
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes: the whole URL, the body unchanged, and the headers to send."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that was read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Witness(Protocol):
    """Looks at an answer on its way; nothing it sees is changed."""

    def saw_events(self, data: bytes) -> None:
        """See some whole events before they are passed on."""

    def saw_whole(self, answer: WholeAnswer) -> None:
        """See an answer that is no stream; raises UpstreamError for one that must not go on."""


def upstream_session(idle_seconds: float | None = IDLE_SECONDS) -> aiohttp.ClientSession:
    """Make the client session for forwarding: no cap on connections, no total time limit.

    Without `idle_seconds` the caller must end answers of an upstream that it finds dead.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=idle_seconds
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def request_headers(request: web.Request, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Choose what a Target sends: the client's end-to-end headers, the request id, and `extra`.

    Never passed on, unless `extra` has them: the client's key and cookies, since a Head Worker is a
    stranger's machine, and `x-meshnet-` headers, which nobody outside may set.
    """
    headers = {
        name: value
        for name, value in end_to_end(request.headers).items()
        if name.lower() not in _PRIVATE and not name.lower().startswith(_OWN_PREFIX)
    }
    headers[REQUEST_ID_HEADER] = request_id(request)
    headers[hdrs.ACCEPT_ENCODING] = "identity"
    return {**headers, **(extra or {})}


async def read_whole(
    upstream: aiohttp.ClientResponse, most_bytes: int = MAX_WHOLE_ANSWER_BYTES
) -> WholeAnswer:
    """Read an answer that is no stream; raises UpstreamUnreachableError."""
    body = bytearray()
    while data := await _read_some(upstream):
        body += data
        if len(body) > most_bytes:
            raise UpstreamUnreachableError(f"Its answer is over {most_bytes} bytes.")
    return WholeAnswer(upstream.status, upstream.headers, bytes(body))


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """Choose the headers that are meant for whoever gets the answer in the end."""
    named = {name.strip().lower() for name in headers.get(hdrs.CONNECTION, "").split(",")}
    dropped = _HOP_BY_HOP | _SET_ANEW | named
    return {
        name: value
        for name, value in headers.items()
        # What cannot be written again would end the answer.
        if name.lower() not in dropped and value.isprintable()
    }


class ForwardedAnswer:
    """The one answer to a client, over as many upstream attempts as its caller makes."""

    def __init__(
        self,
        request: web.Request,
        ending: StreamEnding = DONE_ENDING,
        signs: SignsOfLife = SIGNS,
    ) -> None:
        self._request = request
        self._ending = ending
        self._stream = ClientStream(request, signs)
        self._events = 0
        self._upstream: aiohttp.ClientResponse | None = None
        self.lost: UpstreamError | None = None
        """How the upstream was lost in mid-answer, if it was; the client has been told."""

    async def keep_company(self, ahead: Callable[[], int]) -> None:
        """Show a client that wants a stream signs of life, beside all attempts; never returns."""
        await self._stream.keep_company(ahead)

    async def forward(
        self, session: aiohttp.ClientSession, target: Target, witness: Witness | None = None
    ) -> web.StreamResponse:
        """POST the target and pass its answer on; return the client's response, ended.

        Raises UpstreamError while nothing was committed, so that another target may be tried:
        UpstreamRefusedError for a 502 or 503, UpstreamUnreachableError for the rest.
        """
        self._upstream = None
        async with await self._open(session, target) as upstream:
            self._upstream = upstream
            if upstream.content_type == "text/event-stream" and upstream.status == 200:
                return await self._pass_events(upstream, witness)
            answer = await read_whole(upstream)
        if answer.status in _REFUSAL_STATUSES:
            raise UpstreamRefusedError(answer)
        if witness is not None:
            witness.saw_whole(answer)
        return await self._pass_whole(answer)

    def hang_up(self) -> bool:
        """Take what is still to come of this attempt for lost; False if nothing has come yet."""
        if self._upstream is None:
            return False
        self._upstream.close()
        return True

    async def fail(self, error: ApiError) -> web.StreamResponse:
        """End the answer with an error: its own status, or an event if headers are out already."""
        if not self._stream.is_open:
            return error_response(error)
        return await self._stream.close(self._ending.failed(error.to_json(), self._events))

    async def give_up(self, last: UpstreamError) -> web.StreamResponse:
        """End the answer after the last attempt: the upstream's own refusal, else a 502."""
        if isinstance(last, UpstreamRefusedError):
            return await self._pass_whole(last.refusal)
        return await self.fail(errors.upstream_failed("No Head Worker could answer the request."))

    async def _open(self, session: aiohttp.ClientSession, target: Target) -> aiohttp.ClientResponse:
        try:
            return await session.post(
                target.url,
                data=io.BytesIO(target.body),
                headers=target.headers,
                allow_redirects=False,
            )
        except NO_ANSWER as error:
            raise UpstreamUnreachableError(_reason(error)) from error

    async def _pass_events(
        self, upstream: aiohttp.ClientResponse, witness: Witness | None
    ) -> web.StreamResponse:
        boundaries, headers = EventBoundaries(), end_to_end(upstream.headers)
        lost = UpstreamUnreachableError("Its stream has ended early.")
        try:
            while data := await _read_some(upstream):
                if ready := boundaries.feed(data):
                    if witness is not None:
                        witness.saw_events(ready)
                    self._stream.committed = boundaries.events > 0
                    await self._stream.write(ready, headers)
        except UpstreamUnreachableError as error:
            lost = error
        except EventTooLongError as error:
            lost = UpstreamUnreachableError(str(error))
        if self._ending.is_told(boundaries.last_data):
            return await self._stream.close(b"")
        upstream.close()
        _logger.warning("upstream lost", reason=str(lost), request_id=request_id(self._request))
        if not boundaries.events:
            raise lost
        self.lost, self._events = lost, boundaries.events
        return await self.fail(errors.worker_lost("The Head Worker was lost in mid-answer."))

    async def _pass_whole(self, answer: WholeAnswer) -> web.StreamResponse:
        if not self._stream.is_open:
            return web.Response(
                status=answer.status, body=answer.body, headers=end_to_end(answer.headers)
            )
        if answer.status < 400:
            raise UpstreamUnreachableError(f"HTTP {answer.status} instead of an event stream.")
        return await self._stream.close(self._ending.failed(_envelope(answer), self._events))


def _envelope(answer: WholeAnswer) -> bytes:
    """Return what an upstream has answered if it is an error in our shape, else one that is."""
    try:
        msgspec.json.decode(answer.body, type=ErrorEnvelope)
    except (msgspec.DecodeError, RecursionError):
        return errors.upstream_failed(f"The upstream answered HTTP {answer.status}.").to_json()
    return answer.body


async def _read_some(upstream: aiohttp.ClientResponse) -> bytes:
    try:
        return await upstream.content.readany()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise UpstreamUnreachableError(_reason(error)) from error


def _reason(error: Exception) -> str:
    # The type only: the text may hold internal addresses, and this may reach a client's log.
    return f"{type(error).__name__}."
