import asyncio
import os
import signal
import socket
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from meshnet_common.edge.http import new_application, open_event_stream
from meshnet_common.edge.serving import (
    ListenError,
    PortInUseError,
    ReadyFileError,
    listening,
    serve_until_signal,
    stop_and_hurry_on_signal,
    stop_on_signal,
    write_ready_file,
)
from meshnet_common.openai.sse import KEEP_ALIVE_COMMENT

LOOPBACK = "127.0.0.1"


def application_with(handler: web.RequestHandler | object) -> web.Application:
    app = new_application()
    app.router.add_get("/", handler)  # type: ignore[arg-type]  # any handler of a test
    return app


async def hello(_request: web.Request) -> web.Response:
    return web.Response(text="hello")


async def test_port_zero_picks_a_port_and_the_url_names_it() -> None:
    async with (
        listening(application_with(hello), LOOPBACK, 0) as url,
        aiohttp.ClientSession() as session,
        session.get(url) as response,
    ):
        assert await response.text() == "hello"


async def test_an_address_of_every_interface_is_given_as_one_that_can_be_called() -> None:
    async with listening(new_application(), "0.0.0.0", 0) as url:
        assert url.startswith("http://127.0.0.1:")


async def test_a_port_in_use_says_what_and_what_to_do() -> None:
    async with listening(new_application(), LOOPBACK, 0) as url:
        port = int(url.rsplit(":", 1)[1])
        with pytest.raises(PortInUseError, match=rf"Port {port} on 127.0.0.1.*choose") as caught:
            async with listening(new_application(), LOOPBACK, port):
                pass

    assert caught.value.exit_status == 3


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
async def test_an_address_that_is_not_ours_cannot_be_listened_on(host: str) -> None:
    with pytest.raises(ListenError):
        async with listening(new_application(), host, 0):
            pass


async def test_a_handler_is_cancelled_when_its_client_goes() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(_request: web.Request) -> web.Response:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with asyncio.timeout(5), listening(application_with(endless), LOOPBACK, 0) as url:
        _, writer = await asyncio.open_connection(LOOPBACK, int(url.rsplit(":", 1)[1]))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await started.wait()
        writer.close()
        await cancelled.wait()


async def test_an_open_stream_does_not_keep_the_server_from_ending() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = await open_event_stream(request)
        await response.write(KEEP_ALIVE_COMMENT)
        await asyncio.Event().wait()
        return response

    async with aiohttp.ClientSession() as session:
        async with listening(application_with(endless), LOOPBACK, 0) as url:
            stream = await session.get(url)
            await stream.content.readline()
            begun = time.monotonic()
        assert time.monotonic() - begun < 5
        with pytest.raises(aiohttp.ClientError):
            await stream.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_serving_and_frees_the_port(number: signal.Signals) -> None:
    urls: list[str] = []

    def ready(url: str) -> None:
        urls.append(url)
        os.kill(os.getpid(), number)

    async with asyncio.timeout(5):
        await serve_until_signal(new_application(), LOOPBACK, 0, ready)

    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind((LOOPBACK, int(urls[0].rsplit(":", 1)[1])))


async def test_a_signal_sets_the_event_for_a_daemon_with_other_tasks() -> None:
    with stop_on_signal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await stop.wait()


async def test_a_daemon_that_takes_its_time_hears_a_second_signal() -> None:
    with stop_and_hurry_on_signal() as (stop, hurry):
        async with asyncio.timeout(5):
            os.kill(os.getpid(), signal.SIGTERM)
            await stop.wait()
            assert not hurry.is_set()
            os.kill(os.getpid(), signal.SIGINT)
            await hurry.wait()


def test_the_ready_file_holds_the_url_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    write_ready_file(ready, "http://127.0.0.1:1")
    write_ready_file(ready, "http://127.0.0.1:2")

    assert ready.read_text() == "http://127.0.0.1:2\n"
    assert list(tmp_path.iterdir()) == [ready]


def test_a_ready_file_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ReadyFileError, match="ready-file"):
        write_ready_file(tmp_path / "missing" / "ready", "http://127.0.0.1:1")
