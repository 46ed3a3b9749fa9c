"""Workers' links behind real servers, and Peers that speak to them byte by byte."""

import asyncio
import base64
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import aiohttp

from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import Body, ProgressBody, to_frame
from meshnet_common.protocol.frames import encode_frame
from meshnet_worker.transport.links import LinkClass, LinkListener, Links
from meshnet_worker.transport.liveness import Deadlines
from meshnet_worker.transport.watch import StepAges
from tests.worker.waiting import SECONDS, Changes, ending_tasks

NOWHERE = "http://127.0.0.1:1"
INTERACTIVE, BULK = LinkClass.INTERACTIVE, LinkClass.BULK
QUICK = Deadlines(ping_seconds=0.02, silence_seconds=0.2, pause_seconds=5.0)
EAGER = Deadlines(ping_seconds=0.02, silence_seconds=60.0)


def numbered(number: int) -> ProgressBody:
    return ProgressBody(session_id="s1", epoch=(1, 0), position=number)


def wire(body: Body) -> bytes:
    return encode_frame(to_frame(body))


class End:
    """One Worker's links behind a real server, and all that it heard."""

    def __init__(
        self, worker_id: str, tasks: asyncio.TaskGroup, deadlines: Deadlines | None = None
    ) -> None:
        self.worker_id = WorkerId(worker_id)
        self.url = ""
        self.heard: list[tuple[str, Body]] = []
        self.lost: list[str] = []
        self.reasons: list[str] = []
        self.stalled: list[str] = []
        self.pinged = 0
        self.overdue_seconds = 0.0
        self.changes = Changes()
        listener = LinkListener(self._on_body, self._on_lost, self._on_stalled, self._step_ages)
        self.links = Links(self.worker_id, listener, tasks, deadlines)

    def send(self, other: "End", *numbers: int, link_class: LinkClass = INTERACTIVE) -> None:
        for number in numbers:
            self.links.send(other.worker_id, other.url, link_class, numbered(number))

    async def hears(self, *numbers: int) -> None:
        await self.changes.until(lambda: len(self.heard) >= len(numbers))
        assert self.numbers == list(numbers)

    async def is_pinged(self, times: int = 3) -> None:
        """Wait until it was asked so many more times whether it lives."""
        enough = self.pinged + times
        await self.changes.until(lambda: self.pinged >= enough)

    @property
    def numbers(self) -> list[int]:
        return [body.position for _, body in self.heard if isinstance(body, ProgressBody)]

    def _on_body(self, sender: WorkerId, body: Body) -> None:
        self.heard.append((sender, body))
        self.changes.tell()

    def _on_lost(self, worker_id: WorkerId, reason: str) -> None:
        self.lost.append(worker_id)
        self.reasons.append(reason)
        self.changes.tell()

    def _on_stalled(self, worker_id: WorkerId, _reason: str) -> None:
        self.stalled.append(worker_id)
        self.changes.tell()

    def _step_ages(self) -> StepAges:
        self.pinged += 1
        self.changes.tell()
        return StepAges(self.overdue_seconds, self.overdue_seconds)


@asynccontextmanager
async def served(end: End) -> AsyncIterator[None]:
    app = new_application()
    app.router.add_get("/link", end.links.accept)
    async with listening(app, "127.0.0.1", 0) as end.url:
        yield


@asynccontextmanager
async def two_ends(deadlines: Deadlines | None = None) -> AsyncIterator[tuple[End, End]]:
    async with AsyncExitStack() as servers:
        ends = []
        try:
            async with ending_tasks() as tasks:
                ends = [End("w1", tasks, deadlines), End("w2", tasks, deadlines)]
                for end in ends:
                    await servers.enter_async_context(served(end))
                yield ends[0], ends[1]
        finally:
            for end in ends:
                await end.links.close()


@asynccontextmanager
async def dialled(url: str, query: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A Peer that only does what the test does: it answers no ping."""
    async with (
        asyncio.timeout(SECONDS),
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{url}/link?{query}") as websocket,
    ):
        yield websocket


class RawPeer:
    """A Peer that speaks WebSocket byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def is_hung_up_on(self) -> None:
        """Read until the end."""
        async with asyncio.timeout(SECONDS):
            while await self._reader.read(1 << 16):
                pass


@asynccontextmanager
async def raw_peer(url: str, query: str) -> AsyncIterator[RawPeer]:
    """Dial a link by hand."""
    parts = urlsplit(url)
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        key = base64.b64encode(bytes(16)).decode()
        lines = (
            f"GET /link?{query} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        )
        writer.write("\r\n".join((*lines, "", "")).encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101"), answer
        try:
            yield RawPeer(reader, writer)
        finally:
            writer.close()


def message(declared_bytes: int, payload: bytes = b"") -> bytes:
    """A masked binary message that says how long it is, and as much of it as there is."""
    return struct.pack(">BBQI", 0x82, 0xFF, declared_bytes, 0) + payload
