import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from structlog.testing import capture_logs

from meshnet_common.edge import http
from meshnet_common.edge.http import (
    MAX_BODY_BYTES,
    bearer_token,
    json_response,
    new_application,
    open_event_stream,
    read_json_body,
    request_id,
    tell_in_headers,
)
from meshnet_common.edge.serving import listening
from meshnet_common.errors import MeshnetError, ProtocolError, TicketError
from meshnet_common.openai.errors import model_not_found, overloaded
from meshnet_common.openai.sse import data_event

JSON = {"Content-Type": "application/json"}


class ShelfEmptyError(MeshnetError):
    """There is nothing on the shelf."""


class ShelfBrokenError(ShelfEmptyError):
    """The shelf itself is gone."""


FAULTS: dict[str, Exception] = {
    "api": model_not_found("m"),
    "own": ShelfBrokenError("Row 3."),
    "protocol": ProtocolError("Bad magic."),
    "ticket": TicketError("It expired."),
    "stranger": MeshnetError("secret fact"),
    "surprise": RuntimeError("secret fact"),
    "aiohttp": web.HTTPGone(),
}


async def fail(request: web.Request) -> web.Response:
    raise FAULTS[request.match_info["fault"]]


async def echo(request: web.Request) -> web.Response:
    return json_response(await read_json_body(request))


async def name(request: web.Request) -> web.Response:
    return web.Response(text=request_id(request))


async def stream(request: web.Request) -> web.StreamResponse:
    response = await open_event_stream(request)
    await response.write(data_event(b"{}"))
    if "broken" in request.query:
        raise RuntimeError("in mid-stream")
    await response.write_eof()
    return response


async def call(method: str, path: str, **options: Any) -> tuple[aiohttp.ClientResponse, bytes]:
    app = new_application({ShelfEmptyError: lambda error: overloaded(str(error), 5)})
    app.router.add_get("/fail/{fault}", fail)
    app.router.add_post("/echo", echo)
    app.router.add_get("/name", name)
    app.router.add_get("/stream", stream)
    async with (
        listening(app, "127.0.0.1", 0) as url,
        aiohttp.ClientSession(url) as session,
        session.request(method, path, **options) as response,
    ):
        return response, await response.read()


async def error_of(method: str, path: str, **options: Any) -> tuple[int, dict[str, Any]]:
    response, _ = await call(method, path, **options)
    body = await response.json()
    assert body.keys() == {"error"}
    assert {"message", "type", "param", "code"} <= body["error"].keys()
    assert response.headers["x-request-id"]
    return response.status, body["error"]


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("api", 404, "model_not_found"),
        ("own", 503, "overloaded"),
        ("protocol", 400, None),
        ("ticket", 403, "invalid_ticket"),
        ("stranger", 500, "internal_error"),
        ("surprise", 500, "internal_error"),
        ("aiohttp", 410, None),
    ],
)
async def test_every_fault_has_the_shape_of_the_public_api(
    fault: str, status: int, code: str | None
) -> None:
    with capture_logs():
        answered, error = await error_of("GET", f"/fail/{fault}")

    assert (answered, error["code"]) == (status, code)
    assert "secret fact" not in error["message"]


async def test_an_error_of_a_room_keeps_its_facts_and_headers() -> None:
    response, body = await call("GET", "/fail/own")

    assert response.headers["Retry-After"] == "5"
    assert b"The shelf itself is gone. Row 3." in body


async def test_a_body_that_does_not_come_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_SECONDS", 0.05)
    monkeypatch.setattr(http, "LEAST_BODY_BYTES_PER_SECOND", 1 << 30)

    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with asyncio.timeout(10):
        status, error = await error_of("POST", "/echo", data=stuck(), headers=JSON)
    assert (status, error["type"]) == (408, "invalid_request_error")


@pytest.mark.parametrize("where", ["/fail/api", "/fail/surprise", "/name", "/stream", "/none"])
async def test_every_answer_says_how_long_it_took(where: str) -> None:
    with capture_logs():
        response, _ = await call("GET", where)

    assert 0 <= int(response.headers["openai-processing-ms"]) < 60_000


async def test_what_is_told_in_headers_is_told_as_it_is_when_they_go_out() -> None:
    facts = {"x-fact": "early"}

    async def late(request: web.Request) -> web.Response:
        tell_in_headers(request, lambda: facts)
        tell_in_headers(request, lambda: {"x-other": "1"})
        facts["x-fact"] = "late"
        raise model_not_found("m")

    app = new_application()
    app.router.add_get("/", late)
    async with (
        listening(app, "127.0.0.1", 0) as url,
        aiohttp.ClientSession() as session,
        session.get(url) as response,
    ):
        told = response.headers
    assert (told["x-fact"], told["x-other"]) == ("late", "1")


async def test_a_surprise_is_logged_with_its_traceback_and_request_id() -> None:
    with capture_logs() as logs:
        await call("GET", "/fail/surprise", headers={"x-request-id": "abc"})

    (entry,) = logs
    assert (entry["event"], entry["request_id"]) == ("request failed", "abc")
    assert entry["exc_info"]


async def test_an_unknown_url_and_a_wrong_method_have_the_same_shape() -> None:
    status, error = await error_of("GET", "/nowhere")
    assert (status, error["type"]) == (404, "invalid_request_error")

    response, _ = await call("DELETE", "/echo")
    assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_a_body_over_the_limit_is_413() -> None:
    status, error = await error_of(
        "POST", "/echo", data=io.BytesIO(b" " * (MAX_BODY_BYTES + 1)), headers=JSON
    )

    assert (status, error["code"]) == (413, "request_too_large")


async def test_a_body_below_the_limit_is_read_whole() -> None:
    body = b" " * (MAX_BODY_BYTES - 1)

    _, answer = await call("POST", "/echo", data=io.BytesIO(body), headers=JSON)
    assert answer == body


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {**JSON, "Content-Encoding": "gzip"},
    ],
)
async def test_other_media_and_compressed_bodies_are_415(headers: dict[str, str]) -> None:
    status, _ = await error_of("POST", "/echo", data=b"", headers=headers)

    assert status == 415


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "application/x+json"])
async def test_json_by_any_of_its_names_is_read(media_type: str) -> None:
    response, _ = await call("POST", "/echo", data=b"{}", headers={"Content-Type": media_type})

    assert response.status == 200


async def test_a_sound_request_id_is_kept_for_the_handler_and_the_answer() -> None:
    response, body = await call("GET", "/name", headers={"x-request-id": "trace 42"})

    assert response.headers["x-request-id"] == "trace 42"
    assert body == b"trace 42"


@pytest.mark.parametrize("offered", ["", "x" * 129, "Zoë", "a\tb"])
async def test_an_unsound_request_id_is_replaced(offered: str) -> None:
    response, body = await call("GET", "/name", headers={"x-request-id": offered})

    assert response.headers["x-request-id"].startswith("req_")
    assert body.decode() == response.headers["x-request-id"]


async def test_a_stream_has_its_headers_and_a_request_id() -> None:
    response, body = await call("GET", "/stream")

    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.headers["x-request-id"]
    assert body == b"data: {}\n\n"


async def test_a_fault_in_mid_stream_is_never_a_clean_end() -> None:
    with capture_logs(), pytest.raises(aiohttp.ClientError):
        await call("GET", "/stream?broken")


async def test_a_body_that_is_badly_framed_is_400() -> None:
    app = new_application()
    app.router.add_post("/echo", echo)
    async with listening(app, "127.0.0.1", 0) as url, asyncio.timeout(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        status_line = await reader.readline()
        writer.close()

    assert b" 400 " in status_line


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", ""),
        ("abc", ""),
        ("Bearer", ""),
        ("", ""),
    ],
)
def test_only_a_bearer_token_is_a_token(header: str, token: str) -> None:
    headers = {"Authorization": header} if header else {}
    assert bearer_token(make_mocked_request("GET", "/", headers=headers)) == token


async def test_a_token_that_is_no_text_is_none() -> None:
    async def told(request: web.Request) -> web.Response:
        return web.json_response(bearer_token(request))

    app = new_application()
    app.router.add_get("/", told)
    async with listening(app, "127.0.0.1", 0) as url, asyncio.timeout(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        writer.write(head + b"Authorization: Bearer mn_sk_\xff\xfe\r\n\r\n")
        # The rest may still come: for a while it is read and thrown away.
        answer = await reader.read(4096)
        writer.close()

    assert answer.endswith(b'\r\n\r\n""')
