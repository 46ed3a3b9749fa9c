"""Just enough HTTP to call a Tracker over some shared connections, at little cost."""

import asyncio
from collections import deque

LINES = 400


class Line(asyncio.Protocol):
    """One connection with one call at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._buffer) < end + 4 + length:
            return
        body, self._buffer = self._buffer[end + 4 : end + 4 + length], b""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((int(head[9:12]), body))

    async def call(self, request: bytes) -> tuple[int, bytes]:
        assert self.transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer


class Lines:
    """Connections to one Tracker, lent for a call each."""

    def __init__(self, host: str, port: int) -> None:
        self._where = host, port
        self._idle: deque[Line] = deque()
        self._turn = asyncio.Semaphore(LINES)

    async def call(
        self, method: str, path: str, body: bytes = b"", token: str = ""
    ) -> tuple[int, bytes]:
        async with self._turn:
            line = self._idle.popleft() if self._idle else Line()
            if line.transport is None:
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: line, *self._where)
            head = f"{method} {path} HTTP/1.1\r\nHost: tracker\r\n"
            if token:
                head += f"Authorization: Bearer {token}\r\n"
            if body:
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            answer = await line.call(head.encode() + b"\r\n" + body)
            self._idle.append(line)
            return answer
