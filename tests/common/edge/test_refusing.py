"""What aiohttp answers by itself, over plain sockets: each answer has the public API's shape."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from meshnet_common.edge.http import new_application, read_json_body, tell_in_headers
from meshnet_common.edge.serving import listening

LONG = b"a" * 20_000
SECONDS = 10.0
LARGEST_ERROR_BYTES = 1000

UNREADABLE = {
    "no HTTP at all": b"NONSENSE\r\n\r\n",
    "a TLS client": bytes.fromhex("16030100c8010000c40303"),
    "a client of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "another version": b"POST /echo HTTP/9.9\r\nHost: x\r\n\r\n",
    "an unknown method": b"BREW /echo HTTP/1.1\r\nHost: x\r\n\r\n",
    "a URL that is too long": b"GET /" + LONG + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a URL that is none": b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a long URL that is none": b"GET http://[" + LONG[:8000] + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "bytes in a URL": b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    "a header that is too long": b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + LONG + b"\r\n\r\n",
    "a line that is no header": b"GET / HTTP/1.1\r\nHost: x\r\nno header\r\n\r\n",
    "a zero in a header": b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + LONG[:8000] + b"\0\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "a length below zero": b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    "two lengths": b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk of no size": b"POST /echo HTTP/1.1\r\nHost: x\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
}


def post(*headers: bytes, body: bytes = b"{}") -> bytes:
    lines = (b"POST /echo HTTP/1.1", b"Host: x", *headers, b"Content-Length: %d" % len(body))
    return b"\r\n".join((*lines, b"", body))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await read_json_body(request))

    app = new_application(max_body_bytes=1000)
    app.router.add_post("/echo", echo)
    async with listening(app, "127.0.0.1", 0) as url:
        yield int(url.rsplit(":", 1)[1])


async def refused(port: int, request: bytes) -> tuple[int, dict[str, str | None]]:
    """Send it, and return the status and the error; every answer must have all of its shape."""
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
            headers = dict(line.split(": ", 1) for line in head[1:] if line)
            body = await reader.readexactly(int(headers["content-length"]))
        finally:
            writer.close()
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"].startswith("req_")
    assert headers["server"] == "meshnet"
    assert len(body) < LARGEST_ERROR_BYTES
    error: dict[str, str | None] = json.loads(body)["error"]
    assert {"message", "type", "param", "code"} == error.keys()
    assert error["type"] == "invalid_request_error"
    return int(head[0].split()[1]), error


@pytest.mark.parametrize("what", UNREADABLE)
async def test_what_is_no_http_is_a_400_that_repeats_nothing_of_it(what: str, port: int) -> None:
    with capture_logs() as logs:
        status, error = await refused(port, UNREADABLE[what])
    assert status == 400
    assert "aaa" not in str(error)
    # A line, and no traceback: anybody may send this all day.
    assert not any(entry.get("exc_info") or entry["log_level"] == "error" for entry in logs)


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"br", b"zstd", b"zip"])
async def test_a_body_in_any_encoding_is_refused_though_it_is_sound(
    encoding: bytes, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with capture_logs():
        status, error = await refused(port, post(b"Content-Encoding: " + encoding))
    assert (status, error["message"]) == (415, "Send the body without a Content-Encoding.")
    assert not caplog.records


async def test_an_expectation_that_nobody_can_meet_is_a_417(port: int) -> None:
    status, _ = await refused(port, post(b"Expect: " + LONG[:8000]))
    assert status == 417


async def test_a_body_that_is_said_to_be_too_large_is_refused_before_it_comes(port: int) -> None:
    request = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
    status, error = await refused(port, request)
    assert (status, error["code"]) == (413, "request_too_large")


async def test_a_body_without_a_length_is_refused_once_it_is_too_large(port: int) -> None:
    chunk = b"%x\r\n" % 1500 + b" " * 1500 + b"\r\n"
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, error = await refused(port, head + chunk)
    assert (status, error["code"]) == (413, "request_too_large")


async def test_headers_are_told_once_for_each_answer() -> None:
    told: list[str] = []

    def telling() -> dict[str, str]:
        told.append("x")
        return {"x-told": str(len(told))}

    async def tell(request: web.Request) -> web.Response:
        tell_in_headers(request, telling)
        return web.Response()

    app = new_application()
    app.router.add_get("/tell", tell)
    async with (
        listening(app, "127.0.0.1", 0) as url,
        aiohttp.ClientSession() as client,
        client.get(f"{url}/tell") as answer,
    ):
        assert answer.headers["x-told"] == "1"
    assert told == ["x"]
