import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web

from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening
from meshnet_worker.transport import sockets
from meshnet_worker.transport.sockets import (
    UNSENT_BYTES,
    WebSocket,
    hang_up,
    keep_short_in_kernel,
    say_goodbye,
    seconds_since_data,
)
from tests.worker.waiting import SECONDS

NewLoop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


class Pair:
    """Both ends of a link; only the client's is read."""

    def __init__(self, client: aiohttp.ClientWebSocketResponse) -> None:
        self.client = client
        self.server: web.WebSocketResponse

    @property
    def both(self) -> tuple[WebSocket, WebSocket]:
        return self.client, self.server


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    accepted: asyncio.Queue[web.WebSocketResponse] = asyncio.Queue(1)
    is_over = asyncio.Event()

    async def accept(request: web.Request) -> web.WebSocketResponse:
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        await accepted.put(websocket)
        await is_over.wait()
        return websocket

    app = new_application()
    app.router.add_get("/link", accept)
    async with (
        asyncio.timeout(SECONDS),
        listening(app, "127.0.0.1", 0) as url,
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{url}/link", timeout=aiohttp.ClientWSTimeout(ws_close=0.01)) as client,
    ):
        one = Pair(client)
        one.server = await accepted.get()
        try:
            yield one
        finally:
            is_over.set()


def run(new_loop: NewLoop, work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work)


def option(websocket: WebSocket, name: int) -> int:
    value: int = websocket.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, name)
    return value


@LOOPS
def test_no_frame_waits_for_another_to_fill_a_segment(new_loop: NewLoop) -> None:
    async def work() -> None:
        async with pair() as ends:
            assert all(option(end, socket.TCP_NODELAY) for end in ends.both)

    run(new_loop, work())


@LOOPS
def test_what_waits_unsent_in_the_kernel_is_bounded(new_loop: NewLoop) -> None:
    async def work() -> None:
        async with pair() as ends:
            for end in ends.both:
                keep_short_in_kernel(end)
                assert option(end, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES

    run(new_loop, work())


@LOOPS
def test_the_kernel_knows_when_it_got_data(new_loop: NewLoop) -> None:
    async def work() -> None:
        async with pair() as ends:
            await ends.server.send_bytes(b"x")
            await ends.client.receive_bytes()
            assert 0 <= seconds_since_data(ends.client) < SECONDS

    run(new_loop, work())


@LOOPS
def test_nobody_is_hung_up_on_twice(new_loop: NewLoop) -> None:
    async def work() -> None:
        async with pair() as ends:
            await ends.client.close()
            hang_up(ends.client)
            keep_short_in_kernel(ends.client)
            assert seconds_since_data(ends.client) == float("inf")

    run(new_loop, work())


@LOOPS
def test_hanging_up_ends_a_link_whose_peer_reads_nothing(new_loop: NewLoop) -> None:
    async def work() -> None:
        async with pair() as ends, clogged(ends.client):
            hang_up(ends.client)
            message = await ends.client.receive()
            assert message.type in {aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR}

    run(new_loop, work())


@LOOPS
def test_a_goodbye_does_not_wait_for_a_peer_that_reads_nothing(
    new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "CLOSE_SECONDS", 0.05)

    async def work() -> None:
        async with pair() as ends, clogged(ends.client):
            await say_goodbye(ends.client, aiohttp.WSCloseCode.GOING_AWAY, "é" * 100)

    run(new_loop, work())


@asynccontextmanager
async def clogged(websocket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[None]:
    """Send until nothing more fits, and expect that this ends with the block."""
    async with asyncio.TaskGroup() as tasks:
        filling = tasks.create_task(fill(websocket))
        while not websocket._writer.protocol.writing_paused:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        assert not filling.done()
        yield
        assert isinstance(await filling, (ConnectionError, aiohttp.ClientError))


async def fill(websocket: aiohttp.ClientWebSocketResponse) -> Exception:
    try:
        while True:
            await websocket.send_bytes(bytes(1 << 20))
    except (ConnectionError, aiohttp.ClientError) as error:
        return error
