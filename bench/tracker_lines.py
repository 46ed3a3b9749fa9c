"""Just enough HTTP to call a Tracker over some shared connections, at little cost.

Who calls says what is to be done with the answer; no task waits for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable

LINES = 400

Answer = Callable[[int, bytes], None]
"""Takes the status and the body; the status of a lost connection is 0."""

LOST = 0


class Line(asyncio.Protocol):
    """One connection with one call at a time."""

    def __init__(self, on_free: Callable[["Line"], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self._on_free = on_free
        self._answer: Answer | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast would do, since uvloop's transports are no subclasses of asyncio's.
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.transport = None
        self._finish(LOST, b"")

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = buffer[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(buffer) < end + 4 + length:
            return
        self._buffer = b""
        self._finish(int(head[9:12]), buffer[end + 4 : end + 4 + length])

    def send(self, request: bytes, answer: Answer) -> None:
        assert self.transport is not None
        self._answer = answer
        self.transport.write(request)

    def _finish(self, status: int, body: bytes) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        # First the next call, so that the Tracker need not wait for what is done with this answer.
        self._on_free(self)
        answer(status, body)


class Lines:
    """Connections to one Tracker, lent for a call each; calls beyond them queue."""

    def __init__(self, host: str, port: int) -> None:
        self._where = host, port
        self._idle: list[Line] = []
        self._waiting: deque[tuple[bytes, Answer]] = deque()

    async def open(self) -> None:
        """Open all connections, a few at a time."""
        loop = asyncio.get_running_loop()
        for _ in range(LINES):
            _, line = await loop.create_connection(lambda: Line(self._free), *self._where)
            self._idle.append(line)

    def send(self, request: bytes, answer: Answer) -> None:
        """Send a request, now or when a connection is free."""
        while self._idle:
            line = self._idle.pop()
            if line.transport is not None:
                line.send(request, answer)
                return
        self._waiting.append((request, answer))

    async def call(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and wait for the answer."""
        answered: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

        def answer(status: int, body: bytes) -> None:
            if not answered.done():
                answered.set_result((status, body))

        self.send(request, answer)
        return await answered

    def _free(self, line: Line) -> None:
        if line.transport is None:
            return
        if self._waiting:
            line.send(*self._waiting.popleft())
        else:
            self._idle.append(line)


def head_of(method: str, path: str, token: str = "") -> bytes:
    """Write a request up to what depends on its body."""
    head = f"{method} {path} HTTP/1.1\r\nHost: tracker\r\n"
    if token:
        head += f"Authorization: Bearer {token}\r\n"
    return head.encode()


def with_body(head: bytes, body: bytes = b"") -> bytes:
    """Complete a request."""
    if not body:
        return head + b"\r\n"
    more = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head + more + body
