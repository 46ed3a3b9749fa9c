import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web

from meshnet_common.edge.beside import beside
from meshnet_common.edge.forwarding import WholeAnswer
from meshnet_common.edge.http import new_application, started_response
from meshnet_common.edge.serving import listening
from meshnet_common.openai.errors import overloaded
from meshnet_common.openai.sse import (
    DONE_EVENT,
    KEEP_ALIVE_COMMENT,
    accepted_comment,
    data_event,
)
from meshnet_common.openai.stream_endings import DoneEnding, NumberedEnding
from meshnet_tracker.client_answer import CollectedAnswer, Ending, StreamedAnswer
from meshnet_tracker.tries import ProxyPolicy
from tests.tracker.running import until
from tests.tracker.slow_clients import connected

ERROR = overloaded("Full.", 5)
FULL = Ending.of(ERROR)
PATIENT = ProxyPolicy()
HASTY = ProxyPolicy(ack_after_seconds=0.0)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answered_by(handler: Handler) -> AsyncIterator[aiohttp.ClientResponse]:
    app = new_application()
    app.router.add_get("/", handler)
    async with (
        listening(app, "127.0.0.1", 0) as url,
        aiohttp.ClientSession() as session,
        session.get(url) as response,
    ):
        yield response


async def test_a_stream_passes_each_event_on_and_ends() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        client = StreamedAnswer(request, PATIENT, DoneEnding())
        before = client.committed
        await client.deliver(b"{}")
        assert (before, client.committed) == (False, True)
        return await client.end()

    async with answered_by(handler) as response:
        assert response.content_type == "text/event-stream"
        assert await response.read() == data_event(b"{}") + DONE_EVENT


async def test_an_error_before_the_first_event_has_its_own_status() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await StreamedAnswer(request, PATIENT, DoneEnding()).fail(FULL)

    async with answered_by(handler) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "5")
        assert response.content_type == "application/json"
        assert await response.read() == ERROR.to_json()


async def test_an_error_after_the_headers_is_an_event() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        client = StreamedAnswer(request, HASTY, DoneEnding())
        async with beside(client.keep_company(lambda: 2)):
            await until(lambda: started_response(request) is not None)
            assert not client.committed
            return await client.fail(FULL)

    async with answered_by(handler) as response:
        assert response.status == 200
        told = accepted_comment(2) + data_event(ERROR.to_json()) + DONE_EVENT
        assert await response.read() == told


async def test_signs_of_life_come_between_events_and_never_inside_one() -> None:
    payload = b'{"text": "' + b"x" * 5000 + b'"}'

    async def handler(request: web.Request) -> web.StreamResponse:
        client = StreamedAnswer(request, replace(HASTY, keep_alive_seconds=0.001), DoneEnding())
        async with beside(client.keep_company(lambda: 0)):
            for _ in range(200):
                await client.deliver(payload)
                await asyncio.sleep(0.001)
            return await client.end()

    async with answered_by(handler) as response:
        body = await response.read()
    assert body.count(KEEP_ALIVE_COMMENT) > 3
    rest = body.replace(accepted_comment(0), b"").replace(KEEP_ALIVE_COMMENT, b"")
    assert rest == data_event(payload) * 200 + DONE_EVENT


async def test_an_error_with_line_ends_stays_one_event() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        client = StreamedAnswer(request, PATIENT, DoneEnding())
        await client.deliver(b"1")
        return await client.fail(Ending(400, b'{\n"error": {}\r\n}\n'))

    async with answered_by(handler) as response:
        body = await response.read()
    assert body == data_event(b"1") + data_event(b'{ "error": {} }') + DONE_EVENT


async def test_where_events_are_numbered_an_error_has_the_next_number() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        client = StreamedAnswer(request, PATIENT, NumberedEnding())
        await client.deliver(b"{}")
        await client.deliver(b"{}")
        return await client.fail(FULL)

    async with answered_by(handler) as response:
        body = await response.read()
    assert body == data_event(b"{}") * 2 + NumberedEnding().failed(FULL.body, 2)


async def test_where_no_end_is_told_a_stream_only_ends() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        client = StreamedAnswer(request, PATIENT, NumberedEnding())
        await client.deliver(b"{}")
        return await client.end()

    async with answered_by(handler) as response:
        assert await response.read() == data_event(b"{}")


async def test_one_body_is_the_last_event() -> None:
    async def handler(_request: web.Request) -> web.StreamResponse:
        client = CollectedAnswer()
        await client.keep_company(lambda: 1)
        before = client.committed
        for payload in (b'{"n": 1}', b'{"n": 2}'):
            await client.deliver(payload)
        assert (before, client.committed) == (False, True)
        return await client.end()

    async with answered_by(handler) as response:
        assert (response.status, await response.json()) == (200, {"n": 2})


async def test_one_body_may_be_an_error() -> None:
    async def handler(_request: web.Request) -> web.StreamResponse:
        return await CollectedAnswer().fail(FULL)

    async with answered_by(handler) as response:
        assert (response.status, await response.read()) == (503, ERROR.to_json())


async def test_what_a_head_worker_answered_comes_through_with_its_headers() -> None:
    answer = WholeAnswer(403, {"content-type": "text/plain", "x-own": "1", "Date": "now"}, b"No.")

    async def handler(_request: web.Request) -> web.StreamResponse:
        return await CollectedAnswer().fail(Ending.as_answered(answer))

    async with answered_by(handler) as response:
        assert (response.status, await response.read()) == (403, b"No.")
        assert (response.content_type, response.headers["x-own"]) == ("text/plain", "1")
        assert len(response.headers.getall("Content-Type")) == 1


@pytest.mark.parametrize(("code", "body"), [("overloaded", ERROR.to_json()), (None, b"<html>")])
def test_an_ending_knows_the_code_of_its_error(code: str | None, body: bytes) -> None:
    assert Ending(503, body).error.code == code


@asynccontextmanager
async def writing_on(megabytes: int) -> AsyncIterator[tuple[str, asyncio.Future[bool]]]:
    """Answer with so many megabytes, and tell whether they were taken."""
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        own: socket.socket = request.transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        client = StreamedAnswer(request, PATIENT, DoneEnding())
        is_taken = False
        try:
            for _ in range(megabytes):
                await client.deliver(b"x" * (1 << 20))
            response = await client.end()
            is_taken = True
            return response
        finally:
            ended.set_result(is_taken)

    app = new_application()
    app.router.add_get("/", handler)
    async with listening(app, "127.0.0.1", 0) as url:
        yield url, ended


@pytest.mark.parametrize("megabytes", [1, 64])
async def test_a_client_that_does_not_read_is_left(
    monkeypatch: pytest.MonkeyPatch, megabytes: int
) -> None:
    monkeypatch.setattr("meshnet_common.edge.client_stream.LOOK_SECONDS", 0.2)
    async with asyncio.timeout(10), writing_on(megabytes) as (url, ended):
        with connected(url) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            assert not await ended


async def test_a_client_may_read_as_slowly_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshnet_common.edge.client_stream.LOOK_SECONDS", 0.3)
    async with asyncio.timeout(30), writing_on(2) as (url, ended):
        with connected(url) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            client.setblocking(False)
            loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
            while not ended.done():
                await loop.sock_recv(client, 1 << 16)
                await asyncio.sleep(0.03)
            assert ended.result()
            assert loop.time() - began > 0.6
