"""Passing a request on to another program and its answer back, byte for byte.

Nothing of an event stream is parsed or rewritten; only event boundaries are watched. Until the
first `data:` event has been passed on, a failed upstream is invisible to the client and the caller
may try another one; from then on the failure ends the stream with an error event and `[DONE]`,
never with a silent end.

    answer = ForwardedAnswer(request)
    for target in targets:                                    # the caller's own policy
        try:
            return await answer.forward(session, target)
        except UpstreamError as error:
            last = error                                      # nothing was committed: try the next
    return await answer.fail(upstream_failed("..."))          # or: answer.give_up(last)

A client that goes away cancels the handler, and with it the request to the upstream.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
import structlog
from aiohttp import hdrs, web

from meshnet_common.edge.http import REQUEST_ID_HEADER, error_response, request_id
from meshnet_common.errors import MeshnetError
from meshnet_common.openai import errors
from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.sse import (
    SSE_HEADERS,
    EventBoundaries,
    EventTooLongError,
    failed_stream_ending,
)

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 300.0
"""Longest silence of an upstream whose life is not watched in another way."""

MAX_WHOLE_ANSWER_BYTES = 64 << 20

# An upstream that answers so has not begun to work; another one may do better.
_REFUSAL_STATUSES = frozenset({502, 503})

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


async def read_whole(upstream: aiohttp.ClientResponse) -> WholeAnswer:
    """Read an answer that is no stream; raises UpstreamUnreachableError."""
    body = bytearray()
    while data := await _read_some(upstream):
        body += data
        if len(body) > MAX_WHOLE_ANSWER_BYTES:
            raise UpstreamUnreachableError(f"Its answer is over {MAX_WHOLE_ANSWER_BYTES} bytes.")
    return WholeAnswer(upstream.status, upstream.headers, bytes(body))


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """Choose the headers that are meant for whoever gets the answer in the end."""
    named = {name.strip().lower() for name in headers.get(hdrs.CONNECTION, "").split(",")}
    dropped = _HOP_BY_HOP | _SET_ANEW | named
    return {name: value for name, value in headers.items() if name.lower() not in dropped}


class ForwardedAnswer:
    """The one answer to a client, over as many upstream attempts as its caller makes."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._stream: web.StreamResponse | None = None

    async def forward(self, session: aiohttp.ClientSession, target: Target) -> web.StreamResponse:
        """POST the target and pass its answer on; return the client's response, ended.

        Raises UpstreamError while nothing was committed, so that another target may be tried:
        UpstreamRefusedError for a 502 or 503, UpstreamUnreachableError for the rest.
        """
        async with await self._open(session, target) as upstream:
            return await self._pass_on(upstream)

    async def fail(self, error: ApiError) -> web.StreamResponse:
        """End the answer with an error: its own status, or an event if headers are out already."""
        if self._stream is None:
            return error_response(error)
        await self._stream.write(failed_stream_ending(error.body))
        await self._stream.write_eof()
        return self._stream

    async def give_up(self, last: UpstreamError) -> web.StreamResponse:
        """End the answer after the last attempt: the upstream's own refusal, else a 502."""
        if isinstance(last, UpstreamRefusedError) and self._stream is None:
            return self._whole(last.refusal)
        return await self.fail(errors.upstream_failed("No Head Worker could answer the request."))

    async def _open(self, session: aiohttp.ClientSession, target: Target) -> aiohttp.ClientResponse:
        try:
            return await session.post(
                target.url,
                data=io.BytesIO(target.body),
                headers=target.headers,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamUnreachableError(_reason(error)) from error

    async def _pass_on(self, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        if upstream.content_type == "text/event-stream" and upstream.status == 200:
            return await self._pass_events(upstream)
        answer = await read_whole(upstream)
        if answer.status in _REFUSAL_STATUSES:
            raise UpstreamRefusedError(answer)
        if self._stream is not None:
            raise UpstreamUnreachableError(f"HTTP {answer.status} instead of an event stream.")
        return self._whole(answer)

    async def _pass_events(self, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        boundaries = EventBoundaries()
        lost = UpstreamUnreachableError("Its stream ended without [DONE].")
        try:
            while data := await _read_some(upstream):
                if ready := boundaries.feed(data):
                    await self._write(upstream, ready)
        except UpstreamUnreachableError as error:
            lost = error
        except EventTooLongError as error:
            lost = UpstreamUnreachableError(str(error))
        if boundaries.finished:
            return await self._end()
        upstream.close()
        _logger.warning("upstream lost", reason=str(lost), request_id=request_id(self._request))
        if not boundaries.committed:
            raise lost
        return await self.fail(errors.worker_lost("The Head Worker was lost in mid-answer."))

    async def _write(self, upstream: aiohttp.ClientResponse, data: bytes) -> None:
        if self._stream is None:
            self._stream = web.StreamResponse(headers=end_to_end(upstream.headers))
            self._stream.headers.update(SSE_HEADERS)
            await self._stream.prepare(self._request)
        await self._stream.write(data)

    async def _end(self) -> web.StreamResponse:
        if self._stream is None:
            raise UpstreamUnreachableError("It sent an empty stream.")
        await self._stream.write_eof()
        return self._stream

    def _whole(self, answer: WholeAnswer) -> web.Response:
        return web.Response(
            status=answer.status, body=answer.body, headers=end_to_end(answer.headers)
        )


async def _read_some(upstream: aiohttp.ClientResponse) -> bytes:
    try:
        return await upstream.content.readany()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise UpstreamUnreachableError(_reason(error)) from error


def _reason(error: Exception) -> str:
    # The type only: the text may hold internal addresses, and this may reach a client's log.
    return f"{type(error).__name__}."
