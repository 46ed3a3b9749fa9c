"""Errors of the public API in OpenAI's shape, one constructor for each row of our table.

An `ApiError` is raised where the fault is known and written to the wire in one place, the edge's
middleware or the end of a stream. All four keys are always there and `code` is a string or null.
Messages are capped, so that no error body grows with the request that caused it.
"""

import math
from collections.abc import Mapping

import msgspec

from meshnet_common.errors import MeshnetError

MAX_MESSAGE_CHARACTERS = 500

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"

DO_NOT_RETRY: Mapping[str, str] = {"x-should-retry": "false"}
"""Official clients retry 429 and every 5xx unless this header forbids it."""


class ErrorBody(msgspec.Struct, frozen=True):
    """What stands behind the key `error`; `param` names the field at fault."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ContextLengthBody(ErrorBody, frozen=True):
    """An ErrorBody with the two token counts that do not fit together."""

    n_prompt_tokens: int = 0
    n_ctx: int = 0


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """The whole body of an error answer and the data of an in-band error event."""

    error: ErrorBody


class ApiError(MeshnetError):
    """A request of the public API cannot be answered as asked."""

    def __init__(
        self, status: int, body: ErrorBody, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(body.message)
        self.status = status
        self.body = body
        self.headers: Mapping[str, str] = headers or {}

    def to_json(self) -> bytes:
        return encode_error(self.body)


def encode_error(body: ErrorBody) -> bytes:
    """Write the whole body of an error answer."""
    return msgspec.json.encode(ErrorEnvelope(body))


def invalid_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Refuse a request that breaks a rule of the API; the fault is the client's."""
    return ApiError(400, ErrorBody(_capped(message), INVALID_REQUEST, param, code))


def invalid_unicode() -> ApiError:
    """Refuse a lone UTF-16 surrogate escape, whichever string holds it."""
    message = "A string in the body holds a lone UTF-16 surrogate, which is no character."
    return invalid_request(message, code="invalid_unicode")


def unsupported_value(param: str, message: str) -> ApiError:
    """Refuse what this release does not do, rather than ignore it silently."""
    return invalid_request(message, param, "unsupported_value")


def context_length_exceeded(
    prompt_tokens: int, context_tokens: int, field: str = "messages", *, is_least: bool = False
) -> ApiError:
    """Refuse a prompt that leaves no room; both numbers are in the message and as keys.

    `is_least`: the prompt may have more tokens, of which nobody has read the rest.
    """
    # LiteLLM and LangChain know this error by the words "prompt is too long" and nothing else.
    counted = f"at least {prompt_tokens}" if is_least else f"{prompt_tokens}"
    message = (
        f"The prompt is too long: it has {counted} tokens, but this model's context is "
        f"{context_tokens} tokens, which must also hold the answer. Shorten the {field}."
    )
    return too_many_tokens(message, field, prompt_tokens, context_tokens)


def too_many_tokens(message: str, field: str, tokens: int, most: int) -> ApiError:
    """Refuse a field with more tokens than there is room for, in words of the caller's own."""
    code = "context_length_exceeded"
    figures = {"n_prompt_tokens": tokens, "n_ctx": most}
    return ApiError(400, ContextLengthBody(message, INVALID_REQUEST, field, code, **figures))


def invalid_api_key() -> ApiError:
    """Refuse a request without a key that this Mesh knows."""
    message = "No valid API key was given. Send it as `Authorization: Bearer <key>`."
    body = ErrorBody(message, INVALID_REQUEST, None, "invalid_api_key")
    return ApiError(401, body, {"WWW-Authenticate": "Bearer"})


def forbidden(message: str, code: str) -> ApiError:
    """Refuse a caller that is known or anonymous but may not do this."""
    return ApiError(403, ErrorBody(_capped(message), INVALID_REQUEST, None, code))


def model_not_allowed(model: str) -> ApiError:
    """Refuse a key that may use other models, not this one."""
    message = _capped(f"This API key may not use the model `{model}`.")
    return ApiError(403, ErrorBody(message, INVALID_REQUEST, "model", "model_not_allowed"))


def not_found(message: str) -> ApiError:
    """Answer for a URL that leads nowhere."""
    return ApiError(404, ErrorBody(_capped(message), INVALID_REQUEST))


def model_not_found(model: str) -> ApiError:
    """Answer for a model that no Model Preset defines."""
    message = _capped(f"The model `{model}` does not exist here. `GET /v1/models` lists them.")
    return ApiError(404, ErrorBody(message, INVALID_REQUEST, "model", "model_not_found"))


def method_not_allowed(method: str, allowed: str) -> ApiError:
    """Refuse a method; `allowed` is the value of the Allow header."""
    message = _capped(f"{method} is not allowed on this URL; allowed: {allowed}.")
    return ApiError(405, ErrorBody(message, INVALID_REQUEST), {"Allow": allowed})


def request_timeout(limit_seconds: float) -> ApiError:
    """Refuse a body that does not come; the connection is of no use any more."""
    message = f"The request body did not come within {limit_seconds:.0f} seconds."
    return ApiError(408, ErrorBody(message, INVALID_REQUEST), {"Connection": "close"})


def request_too_large(limit_bytes: int) -> ApiError:
    """Refuse a body over the limit."""
    message = f"The request body is larger than {limit_bytes} bytes."
    return ApiError(413, ErrorBody(message, INVALID_REQUEST, None, "request_too_large"))


def unsupported_media_type(message: str) -> ApiError:
    """Refuse a body whose media type or encoding is not read here."""
    return ApiError(415, ErrorBody(_capped(message), INVALID_REQUEST))


def rate_limited(message: str, kind: str, retry_after_seconds: int) -> ApiError:
    """Refuse for now; `kind` is `requests` or `tokens`, whichever limit was hit."""
    body = ErrorBody(_capped(message), kind, None, "rate_limit_exceeded")
    return ApiError(429, body, _retry_after(retry_after_seconds))


def insufficient_balance(message: str) -> ApiError:
    """Refuse a caller whose account is empty; clients must not retry."""
    body = ErrorBody(_capped(message), "insufficient_quota", None, "insufficient_quota")
    return ApiError(429, body, DO_NOT_RETRY)


def internal_error() -> ApiError:
    """Answer for a fault of our own, without any detail."""
    message = "The server failed while it handled this request; its log has the details."
    return ApiError(500, ErrorBody(message, SERVER_ERROR, None, "internal_error"))


def upstream_failed(message: str) -> ApiError:
    """Report that no upstream answered, all retries spent, before anything was sent."""
    return ApiError(502, ErrorBody(_capped(message), SERVER_ERROR, None, "upstream_failed"))


def request_blamed(seconds: float, *, is_begun: bool = False) -> ApiError:
    """Refuse a request that several Workers fell over; to ask again would cost more of them.

    `is_begun`: the client has got some of the answer already.
    """
    message = (
        "Several Workers failed on this request, one after the other, so it is given to no other "
        f"one for {math.ceil(seconds)} seconds."
    )
    code = "worker_lost" if is_begun else "upstream_failed"
    headers = {**DO_NOT_RETRY, **_retry_after(math.ceil(seconds))}
    return ApiError(502, ErrorBody(message, SERVER_ERROR, None, code), headers)


def overloaded(message: str, retry_after_seconds: int) -> ApiError:
    """Refuse for now, because queue or memory is full."""
    body = ErrorBody(_capped(message), SERVER_ERROR, None, "overloaded")
    return ApiError(503, body, _retry_after(retry_after_seconds))


def model_unavailable(message: str, retry_after_seconds: int) -> ApiError:
    """Answer for a known model that lacks Layers; the message should name them."""
    body = ErrorBody(_capped(message), SERVER_ERROR, "model", "model_unavailable")
    return ApiError(503, body, _retry_after(retry_after_seconds))


def database_unavailable(retry_after_seconds: int) -> ApiError:
    """Refuse for now, because the Tracker's database does not answer."""
    message = "The tracker's database does not answer; try again shortly."
    body = ErrorBody(message, SERVER_ERROR, None, "database_unavailable")
    return ApiError(503, body, _retry_after(retry_after_seconds))


def worker_lost(message: str) -> ApiError:
    """Report the loss of a Worker in the middle of an answer; its place is an error event.

    Where it has a status after all, clients must not ask again by themselves: what was made counts.
    """
    body = ErrorBody(_capped(message), SERVER_ERROR, None, "worker_lost")
    return ApiError(502, body, DO_NOT_RETRY)


def deadline_exceeded(message: str) -> ApiError:
    """Report that the time allowed for a request is over; another try would take as long."""
    body = ErrorBody(_capped(message), SERVER_ERROR, None, "deadline_exceeded")
    return ApiError(504, body, DO_NOT_RETRY)


def _retry_after(seconds: int) -> Mapping[str, str]:
    return {"Retry-After": str(seconds)}


def _capped(message: str) -> str:
    # What a client sent may be in it; a control character would be six others, and no help.
    start = message[: MAX_MESSAGE_CHARACTERS + 1]
    readable = "".join(letter if letter.isprintable() else " " for letter in start)
    if len(readable) <= MAX_MESSAGE_CHARACTERS:
        return readable
    return readable[: MAX_MESSAGE_CHARACTERS - 1] + "…"
