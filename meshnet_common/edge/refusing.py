"""Answers in the public API's shape where aiohttp answers by itself: no middleware sees those.

That is what is no HTTP, a head that is too long, an `Expect` that nobody can meet, and a fault
outside of every handler. Nothing of the request is in such an answer.
"""

import structlog
from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, LineTooLong

from meshnet_common.edge.http import error_response, finish_headers
from meshnet_common.openai import errors
from meshnet_common.openai.errors import ApiError

_logger = structlog.get_logger()


class RefusingRunner(web.AppRunner):
    """Runs an application on connections whose every error has one shape."""

    __slots__ = ()

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        # There is no other way to tell aiohttp what reads its connections.
        server.__class__ = _Server
        return server


class _Connection(web.RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it may hold the request's own bytes
    ) -> web.StreamResponse:
        """Refuse what could not be read, or answer for a fault that no middleware caught."""
        if status < 500:
            # Whoever scans ports would fill a log with tracebacks.
            _logger.info("request unreadable", reason=type(exc).__name__)
        elif not isinstance(exc, ConnectionResetError):
            # Who has left before the end of an answer is no fault.
            _logger.error("request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("half an answer is out")
        response = error_response(_refusal(exc) if status < 500 else errors.internal_error())
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException) and resp.status >= 400:
            body = errors.ErrorBody(resp.reason, errors.INVALID_REQUEST)
            resp = error_response(ApiError(resp.status, body))
        if not resp.prepared:
            # The signal does this where there is a handler.
            await finish_headers(request, resp)
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: object, **kwargs: object) -> None:
        # The rest of a body that was refused unread need not be sound.
        if not isinstance(kwargs.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kwargs)


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


def _refusal(exc: BaseException | None) -> ApiError:
    match exc:
        case ContentEncodingError():
            return errors.unsupported_media_type("Send the body without a Content-Encoding.")
        case LineTooLong():
            return errors.invalid_request("The URL or a header of the request is too long.")
        case _:
            return errors.invalid_request("The request is not valid HTTP.")
