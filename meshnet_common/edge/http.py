"""What every HTTP server of meshnet does alike: error bodies, request ids, limits on bodies.

`new_application` is the one factory of aiohttp applications. Errors become OpenAI's shape here and
nowhere else: an ApiError as it is, a room's own errors through its `ErrorTable`, aiohttp's 404, 405
and 413 re-shaped, and anything unexpected as a 500 without detail, its traceback in the log.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from meshnet_common.edge.clock import loop_time
from meshnet_common.edge.cors import allow_origin, preflight_answer
from meshnet_common.errors import MeshnetError, ProtocolError, TicketError
from meshnet_common.openai import errors
from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.sse import SSE_HEADERS

JSON = "application/json"
MAX_BODY_BYTES = 4 << 20
BODY_SECONDS = 60.0
LEAST_BODY_BYTES_PER_SECOND = 64 << 10
"""Whoever sends a body more slowly, after that minute, holds what it was given for nothing."""
MAX_REQUEST_ID_CHARACTERS = 128
REQUEST_ID_BYTES = 16
REQUEST_ID_HEADER = "x-request-id"
PROCESSING_HEADER = "openai-processing-ms"

Translator = Callable[[MeshnetError], ApiError]
ErrorTable = Mapping[type[MeshnetError], Translator]
"""How a room's own errors look to a client; subclasses are covered by their base's entry."""

REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)

Telling = Callable[[], Mapping[str, str]]

_TELLINGS: web.RequestKey[list[Telling]] = web.RequestKey("tellings", list)
_CAME_AT: web.RequestKey[float] = web.RequestKey("came_at", float)

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

_STARTED: web.RequestKey[web.StreamResponse] = web.RequestKey("started", web.StreamResponse)

_COMMON_ERRORS: ErrorTable = {
    ProtocolError: lambda error: errors.invalid_request(str(error)),
    TicketError: lambda error: errors.forbidden(str(error), "invalid_ticket"),
}

_Body = TypeVar("_Body")

_logger = structlog.get_logger()


def new_application(
    error_table: ErrorTable | None = None,
    *,
    middlewares: Iterable[Middleware] = (),
    max_body_bytes: int = MAX_BODY_BYTES,
) -> web.Application:
    """Make an application whose every answer has a request id and whose errors have one shape."""
    table = {**_COMMON_ERRORS, **(error_table or {})}
    app = web.Application(
        middlewares=[_error_middleware(table, max_body_bytes), *middlewares],
        client_max_size=max_body_bytes,
    )
    app.on_response_prepare.append(finish_headers)
    return app


def request_id(request: web.BaseRequest) -> str:
    """Name this request: the client's id if it is printable ASCII and short, else a new one."""
    known = request.get(REQUEST_ID)
    if known is None:
        known = request[REQUEST_ID] = _clean_id(request.headers.get(REQUEST_ID_HEADER))
    return known


def bearer_token(request: web.BaseRequest) -> str:
    """Return the token of `Authorization: Bearer ...`; empty if there is none, or no text."""
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    # Bytes that are no UTF-8 arrive as lone surrogates, of which nobody could take a hash.
    is_token = scheme.lower() == "bearer" and not _LONE_SURROGATE.search(token)
    return token.strip() if is_token else ""


async def read_json_body(request: web.Request) -> bytes:
    """Read a JSON body's bytes; raises ApiError 415 for other media, 413 above the limit, 408."""
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise errors.unsupported_media_type("Send the body without a Content-Encoding.")
    if request.headers.get(hdrs.CONTENT_TYPE, JSON) != JSON and not _is_json(request.content_type):
        raise errors.unsupported_media_type("Send the body as `Content-Type: application/json`.")
    length = request.content_length or 0
    if length > request.client_max_size:
        # Whoever says beforehand that it is too much need not send it.
        raise errors.request_too_large(request.client_max_size)
    patience = BODY_SECONDS + (length or request.client_max_size) / LEAST_BODY_BYTES_PER_SECOND
    try:
        if request.content.is_eof():
            # Most bodies are here with their heads, and need no timer.
            body = await request.read()
        else:
            async with asyncio.timeout(patience):
                body = await request.read()
    except web.RequestPayloadError as error:
        raise errors.invalid_request("The body ends early or is badly framed.") from error
    except TimeoutError as error:
        raise errors.request_timeout(patience) from error
    # How long the client has taken to send it is no time of ours.
    request[_CAME_AT] = loop_time()
    return body


def _is_json(media_type: str) -> bool:
    return media_type == JSON or media_type.endswith("+json")


def json_response(body: bytes, status: int = 200) -> web.Response:
    """Answer with JSON that is already encoded."""
    return web.Response(body=body, status=status, content_type=JSON)


def error_response(error: ApiError) -> web.Response:
    """Answer with an error in OpenAI's shape; for raising, simply raise the ApiError."""
    return web.Response(
        body=error.to_json(),
        status=error.status,
        content_type=JSON,
        headers=dict(error.headers),
    )


async def open_event_stream(request: web.Request) -> web.StreamResponse:
    """Send the status and headers of an event stream; its bytes come from `openai.sse`."""
    response = web.StreamResponse(headers=dict(SSE_HEADERS))
    await response.prepare(request)
    return response


async def finish_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Add what every answer has in its headers, once."""
    if request.get(_STARTED) is response:
        return
    request[_STARTED] = response
    response.headers[REQUEST_ID_HEADER] = request_id(request)
    response.headers[hdrs.SERVER] = "meshnet"
    response.headers[PROCESSING_HEADER] = f"{processing_seconds(request) * 1000:.0f}"
    for told in request.get(_TELLINGS, ()):
        response.headers.update(told())
    allow_origin(request, response)


def tell_in_headers(request: web.BaseRequest, told: Telling) -> None:
    """Add this to the headers of the answer, whatever that will be, as it is when they go out."""
    request.setdefault(_TELLINGS, []).append(told)


def processing_seconds(request: web.BaseRequest) -> float:
    """For how long a request has been here whole."""
    now = loop_time()
    came_at: float = request.get(_CAME_AT, now)
    return now - came_at


def started_response(request: web.BaseRequest) -> web.StreamResponse | None:
    """Return the response whose headers were already sent, if any."""
    return request.get(_STARTED)


def _clean_id(offered: str | None) -> str:
    if offered and len(offered) <= MAX_REQUEST_ID_CHARACTERS and _is_printable_ascii(offered):
        return offered
    return f"req_{secrets.token_hex(REQUEST_ID_BYTES)}"


def _is_printable_ascii(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _error_middleware(table: ErrorTable, max_body_bytes: int) -> Middleware:
    @web.middleware
    async def translate_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        # Whatever is logged while this request is handled names it.
        structlog.contextvars.bind_contextvars(request_id=request_id(request))
        request[_CAME_AT] = loop_time()
        try:
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            if (answer := preflight_answer(request, error)) is not None:
                return answer
            return _answer(request, _from_aiohttp(request, error, max_body_bytes))
        except MeshnetError as error:
            return _answer(request, _from_meshnet(error, table))
        except Exception as error:
            if isinstance(error, ConnectionResetError) and _client_left(request):
                raise  # Nobody reads an answer now; aiohttp closes what is left.
            _logger.exception("request failed", **_where(request))
            return _answer(request, errors.internal_error())

    return translate_errors


def _client_left(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _answer(request: web.Request, error: ApiError) -> web.StreamResponse:
    started = started_response(request)
    if started is None:
        return error_response(error)
    # Half an answer is out. Breaking the connection is the only way left to say that it failed.
    _logger.warning("answer broken off", reason=str(error), **_where(request))
    if request.transport is not None:
        request.transport.abort()
    return started


def _from_aiohttp(request: web.Request, error: web.HTTPException, max_body_bytes: int) -> ApiError:
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return errors.request_too_large(max_body_bytes)
    if isinstance(error, web.HTTPMethodNotAllowed):
        return errors.method_not_allowed(request.method, ", ".join(sorted(error.allowed_methods)))
    if isinstance(error, web.HTTPNotFound):
        return errors.not_found(f"There is nothing at {request.path}.")
    body = errors.ErrorBody(error.reason, errors.INVALID_REQUEST)
    return ApiError(error.status, body)


def _from_meshnet(error: MeshnetError, table: ErrorTable) -> ApiError:
    if isinstance(error, ApiError):
        return error
    for error_type in type(error).__mro__:
        if translate := table.get(error_type):
            return translate(error)
    _logger.error("request failed", reason=str(error), exc_info=error)
    return errors.internal_error()


def _where(request: web.BaseRequest) -> dict[str, str]:
    return {"request_id": request_id(request), "method": request.method, "path": request.path}
