import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from meshnet_common.edge.beside import beside
from meshnet_common.edge.client_stream import Signs
from meshnet_common.edge.forwarding import (
    DONE_ENDING,
    ForwardedAnswer,
    Target,
    UpstreamError,
    UpstreamUnreachableError,
    WholeAnswer,
    Witness,
    upstream_session,
)
from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening
from meshnet_common.openai.errors import context_length_exceeded, overloaded
from meshnet_common.openai.sse import (
    DONE_EVENT,
    KEEP_ALIVE_COMMENT,
    accepted_comment,
    comment,
    data_event,
)
from tests.common.edge.upstreams import (
    JSON,
    LOOPBACK,
    NOBODY,
    Script,
    endless,
    events,
    hang_up,
    post,
    proxy_over,
    upstream,
    whole,
)

ROLE = data_event(b'{"n": 0}')
TEXT = data_event('{"n": 1, "text": "Hé 😀"}'.encode())
STREAM = (comment("accepted"), ROLE, KEEP_ALIVE_COMMENT, TEXT, DONE_EVENT)


def last_error(body: bytes) -> str:
    """The code of the error event at the end of a stream, which `[DONE]` must follow."""
    assert body.endswith(DONE_EVENT)
    event = body.removesuffix(DONE_EVENT).strip().split(b"\n")[-1]
    code = json.loads(event.removeprefix(b"data: "))["error"]["code"]
    assert isinstance(code, str)
    return code


@pytest.mark.parametrize("cut", [1, 3, 7, 1000])
async def test_the_bytes_of_a_stream_are_passed_on_unchanged(cut: int) -> None:
    stream = b"".join(STREAM)
    pieces = [stream[i : i + cut] for i in range(0, len(stream), cut)]

    async with upstream(events(*pieces)) as head, proxy_over(head.url) as url:
        response, body = await post(url)

    assert body == stream
    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.headers["X-Accel-Buffering"] == "no"


async def test_a_piece_is_passed_on_before_the_next_one_comes() -> None:
    async with (
        upstream(endless(KEEP_ALIVE_COMMENT, ROLE)) as head,
        proxy_over(head.url) as url,
        aiohttp.ClientSession() as session,
        asyncio.timeout(5),
        session.post(f"{url}/v1/chat/completions", data=b"{}", headers=JSON) as response,
    ):
        assert await response.content.readline() == KEEP_ALIVE_COMMENT
        assert await response.content.readline() == ROLE[:-1]


async def test_the_body_arrives_unchanged_whatever_its_size() -> None:
    body = b'{ "spaces":   "stay", "padding": "' + b"x" * 2_000_000 + b'"}'

    async with upstream(whole(b"{}")) as head, proxy_over(head.url) as url:
        response, _ = await post(url, body)

    assert response.status == 200
    assert head.bodies == [body]


async def test_a_whole_answer_keeps_status_body_and_headers() -> None:
    script = whole(b'{"error": 1}', 429, {"Retry-After": "7", "x-extra": "kept"})
    async with upstream(script) as head, proxy_over(head.url) as url:
        response, body = await post(url)

    assert (response.status, body) == (429, b'{"error": 1}')
    assert (response.headers["Retry-After"], response.headers["x-extra"]) == ("7", "kept")
    assert response.content_type == "application/json"


async def test_headers_of_one_connection_and_secrets_stay_behind() -> None:
    sent = {
        "Authorization": "Bearer secret",
        "Cookie": "a=b",
        "Connection": "keep-alive, X-Local",
        "X-Local": "1",
        "TE": "trailers",
        "x-meshnet-ticket": "forged",
        "x-meshnet-anything": "forged",
        "x-request-id": "abc",
        "traceparent": "00-1-1-00",
    }
    own = {"Connection": "close, X-Back", "X-Back": "1", "x-request-id": "other", "X-Odd": "a\xa0"}
    script = whole(b"{}", headers=own)
    async with upstream(script) as head, proxy_over(head.url) as url:
        response, _ = await post(url, headers=sent)

    seen = head.seen[0].headers
    assert not {"Authorization", "Cookie", "X-Local", "TE", "x-meshnet-anything"} & set(seen)
    assert seen.getall("x-meshnet-ticket") == ["signed"]
    assert (seen["x-request-id"], seen["traceparent"]) == ("abc", "00-1-1-00")
    assert not {"X-Back", "X-Odd"} & set(response.headers)
    assert response.headers.getall("x-request-id") == ["abc"]
    assert len(response.headers.getall("Server")) == 1


async def test_the_next_upstream_is_tried_while_nothing_was_committed() -> None:
    broken = (
        upstream(hang_up),
        upstream(whole(b"{}", status=503)),
        upstream(events(comment("accepted"), b"data: {half", then_break=True)),
        upstream(events(then_break=True)),
        upstream(events()),
    )
    async with upstream(events(*STREAM)) as sound:
        for context in broken:
            async with context as head, proxy_over(NOBODY, head.url, sound.url) as url:
                with capture_logs():
                    response, body = await post(url)
            assert response.status == 200
            assert body.removeprefix(comment("accepted")).endswith(b"".join(STREAM[1:]))
            assert b"half" not in body


@pytest.mark.parametrize("then_break", [True, False])
async def test_an_upstream_lost_after_the_commit_ends_with_an_error_event(then_break: bool) -> None:
    pieces = (ROLE, b'data: {"n": 1, "te')

    async with (
        upstream(events(*pieces, then_break=then_break)) as head,
        upstream(events(*STREAM)) as unused,
        proxy_over(head.url, unused.url) as url,
    ):
        with capture_logs() as logs:
            response, body = await post(url)

    assert (response.status, unused.seen) == (200, [])
    assert body.startswith(ROLE)
    assert b'"te' not in body
    assert last_error(body) == "worker_lost"
    assert logs[0]["event"] == "upstream lost"


async def test_a_silent_upstream_counts_as_lost() -> None:
    async with (
        upstream(endless(ROLE)) as head,
        proxy_over(head.url, idle_seconds=0.2) as url,
    ):
        with capture_logs():
            _, body = await post(url)
        async with asyncio.timeout(5):
            await head.left.wait()

    assert last_error(body) == "worker_lost"


async def test_when_nobody_answers_it_is_502() -> None:
    async with upstream(hang_up) as head, proxy_over(NOBODY, head.url) as url:
        response, body = await post(url)

    assert response.status == 502
    assert json.loads(body)["error"]["code"] == "upstream_failed"


async def test_when_all_fail_after_a_comment_the_error_is_an_event() -> None:
    script = events(comment("accepted"), then_break=True)
    async with upstream(script) as head, proxy_over(head.url, NOBODY) as url:
        with capture_logs():
            response, body = await post(url)

    assert response.status == 200
    assert body.startswith(comment("accepted"))
    assert last_error(body) == "upstream_failed"


async def test_the_last_refusal_is_passed_on_as_it_is() -> None:
    script = whole(b'{"error": "full"}', 503, {"Retry-After": "9"})
    async with upstream(script) as head, proxy_over(NOBODY, head.url) as url:
        response, body = await post(url)

    assert (response.status, body) == (503, b'{"error": "full"}')
    assert response.headers["Retry-After"] == "9"


@pytest.mark.parametrize("pieces", [(), (ROLE,)])
async def test_a_client_that_leaves_cancels_the_upstream(pieces: tuple[bytes, ...]) -> None:
    async with upstream(endless(*pieces)) as head, proxy_over(head.url) as url, asyncio.timeout(5):
        reader, writer = await asyncio.open_connection(LOOPBACK, int(url.rsplit(":", 1)[1]))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        )
        await head.arrived.wait()
        if pieces:
            await reader.readuntil(ROLE)
        writer.close()
        await head.left.wait()


class Watching:
    """Keeps what it sees, and lets nothing through that is no object."""

    def __init__(self) -> None:
        self.events = b""

    def saw_events(self, data: bytes) -> None:
        self.events += data

    def saw_whole(self, answer: WholeAnswer) -> None:
        if not answer.body.startswith(b"{"):
            raise UpstreamUnreachableError("No object.")


@asynccontextmanager
async def acknowledging(url: str, witness: Witness | None = None) -> AsyncIterator[str]:
    """Serve a proxy that acknowledges at once and then asks one upstream."""

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = ForwardedAnswer(request, DONE_ENDING, Signs(ack_after_seconds=0.0))
        target = Target(f"{url}/v1/chat/completions", await request.read(), {})
        async with beside(answer.keep_company(lambda: 3)):
            await acknowledged.wait()
            try:
                return await answer.forward(session, target, witness)
            except UpstreamError as error:
                return await answer.give_up(error)

    async def on_prepare(_request: web.Request, _response: web.StreamResponse) -> None:
        acknowledged.set()

    acknowledged = asyncio.Event()
    app = new_application()
    app.on_response_prepare.append(on_prepare)
    app.router.add_post("/v1/{api:.+}", handle)
    async with upstream_session() as session, listening(app, LOOPBACK, 0) as own_url:
        yield own_url


async def test_who_waits_gets_an_acknowledgement_and_then_the_bytes() -> None:
    watching = Watching()
    async with (
        upstream(events(*STREAM)) as head,
        acknowledging(head.url, witness=watching) as url,
    ):
        response, body = await post(url)

    assert response.content_type == "text/event-stream"
    assert body == accepted_comment(3) + b"".join(STREAM)
    assert watching.events == b"".join(STREAM)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (whole(context_length_exceeded(9, 8).to_json(), 400), "context_length_exceeded"),
        (whole(b'{"detail": "no"}', 422), "upstream_failed"),
        (whole(overloaded("Full.", 1).to_json(), 503), "overloaded"),
        (whole(b"{}"), "upstream_failed"),
    ],
)
async def test_a_refusal_behind_the_acknowledgement_is_an_event(answer: Script, code: str) -> None:
    async with upstream(answer) as head, acknowledging(head.url) as url:
        response, body = await post(url)

    assert response.status == 200
    assert last_error(body) == code


async def test_what_a_witness_refuses_does_not_go_on() -> None:
    async with upstream(whole(b"<html>")) as head, proxy_over(head.url, witness=Watching()) as url:
        response, body = await post(url)

    assert (response.status, b"html" in body) == (502, False)
