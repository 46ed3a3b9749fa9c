"""Lets pages of other origins call the public API (the Fetch standard's CORS protocol).

Nothing here is opened by cookies, so every origin may; `/admin` is for no page at all.
"""

from aiohttp import hdrs, web

MAX_AGE_SECONDS = 86400
EXPOSED_HEADERS = (
    "retry-after, x-request-id, x-should-retry, openai-processing-ms, x-ratelimit-limit-requests, "
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, x-meshnet-queue-ms, "
    "x-meshnet-overhead-ms, x-meshnet-route-id"
)
_CLOSED = "/admin"


def is_open(request: web.BaseRequest) -> bool:
    """Whether a page of another origin asks, and may."""
    return hdrs.ORIGIN in request.headers and not request.path.startswith(_CLOSED)


def allow_origin(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Let the page that has asked read the answer."""
    if is_open(request):
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = "*"
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED_HEADERS


def preflight_answer(request: web.BaseRequest, error: web.HTTPException) -> web.Response | None:
    """Answer a browser that asks what it may ask; None for what is no such question."""
    is_question = (
        isinstance(error, web.HTTPMethodNotAllowed)
        and request.method == hdrs.METH_OPTIONS
        and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
    )
    if not is_question or not is_open(request):
        return None
    assert isinstance(error, web.HTTPMethodNotAllowed)
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: ", ".join(sorted(error.allowed_methods)),
        # A star would not cover Authorization.
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(
            hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""
        ),
        hdrs.ACCESS_CONTROL_MAX_AGE: str(MAX_AGE_SECONDS),
    }
    return web.Response(status=204, headers=headers)
