"""TCP proxies between the processes of a Mesh, in a thread of their own.

Each stands before one listener and passes everything on until it is told otherwise. Silence is a
lost network: connections stay open, new ones are taken, nothing passes; when it ends, what got
stuck arrives late, as TCP would bring it. The first line of a link's handshake tells which Worker
dials, so that a pair can lose its network while all others keep theirs.
"""

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import parse_qs, urlsplit

HOST = "127.0.0.1"
CALL_SECONDS = 10.0
READ_BYTES = 1 << 18
EVERYBODY = "*"
"""Stands for every peer, also for those that do not say who they are."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Connection:
    """One connection through a proxy; both its ends once the listener behind has taken it."""

    peer: str = ""
    link_class: str = ""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def reset(self) -> None:
        """Drop what is under way, so that both ends read of a reset connection."""
        for writer in self.writers:
            end: socket.socket | None = writer.get_extra_info("socket")
            with suppress(OSError):
                if end is not None:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class _EndedError(Exception):
    """One end of a connection has closed it."""


class FaultProxy:
    """The way to one listener; its methods may be called from any thread."""

    def __init__(self, room: "Proxies", target_port: int) -> None:
        self.port = 0
        self.bulk_in: Counter[str] = Counter()
        """Bytes that came in over bulk links, by who dialled."""
        self.bulk_out: Counter[str] = Counter()
        """And that went out over them."""
        self._room = room
        self._target_port = target_port
        self._listener: socket.socket | None = None
        self._connections: set[_Connection] = set()
        self._silent: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def listen(self) -> None:
        """Take connections, again at the same port after `refuse`."""
        self._room.run(self._listen())

    def refuse(self) -> None:
        """Refuse new connections, as the kernel does where nobody listens."""
        self._room.run(self._refuse())

    def silence(self, *peers: str) -> None:
        """Let nothing pass from or to these peers."""
        self._room.run(self._set_silent(self._silent | set(peers)))

    def heal(self, *peers: str) -> None:
        """Let these peers through again."""
        self._room.run(self._set_silent(self._silent - set(peers)))

    def cut(self, *peers: str) -> None:
        """Reset the open connections of these peers."""
        self._room.run(self._cut(set(peers)))

    async def _listen(self) -> None:
        # By hand: an asyncio server that is closed loses what it is accepting at that moment.
        if self._listener is None:
            self._listener = socket.create_server((HOST, self.port))
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            asyncio.get_running_loop().add_reader(self._listener, self._take, self._listener)

    async def _refuse(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _take(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            taken, _ = listener.accept()
            taken.setblocking(False)
            self._room.start(self._accept(taken))

    async def _set_silent(self, peers: set[str]) -> None:
        self._silent = peers
        self._changed.set()
        self._changed = asyncio.Event()

    async def _cut(self, peers: set[str]) -> None:
        for connection in tuple(self._connections):
            if peers & {connection.peer, EVERYBODY}:
                connection.reset()

    async def _accept(self, taken: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=taken, limit=READ_BYTES)
        connection = _Connection(writers=[writer])
        self._connections.add(connection)
        try:
            await self._relay(connection, reader)
        except* (_EndedError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            connection.close()
        except* OSError:
            connection.reset()
        finally:
            self._connections.discard(connection)
            connection.close()

    async def _relay(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        # HTTP, and a WebSocket's handshake too: whoever dials speaks first.
        first_line = await reader.readuntil(b"\n")
        connection.peer, connection.link_class = _who_dials(first_line)
        await self._until_heard(connection)
        behind, writer = await asyncio.open_connection(HOST, self._target_port, limit=READ_BYTES)
        connection.writers.append(writer)
        writer.write(first_line)
        async with asyncio.TaskGroup() as pumps:
            pumps.create_task(self._pump(connection, (reader, writer), self.bulk_in))
            out = (behind, connection.writers[0])
            pumps.create_task(self._pump(connection, out, self.bulk_out))

    async def _pump(
        self,
        connection: _Connection,
        ends: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        bulk_bytes: Counter[str],
    ) -> None:
        reader, writer = ends
        while True:
            data = await reader.read(READ_BYTES)
            await self._until_heard(connection)
            if not data:
                raise _EndedError
            if connection.link_class == "bulk":
                with self._room.news:
                    bulk_bytes[connection.peer] += len(data)
                    self._room.news.notify_all()
            writer.write(data)
            await writer.drain()

    async def _until_heard(self, connection: _Connection) -> None:
        while self._silent & {connection.peer, EVERYBODY}:
            await self._changed.wait()

    async def close(self) -> None:
        await self._refuse()
        await self._set_silent(set())
        await self._cut({EVERYBODY})


class Proxies:
    """All proxies of a Mesh and their thread; leaving the `with` block ends them."""

    def __init__(self) -> None:
        self.news = threading.Condition()
        """Notified when bytes pass over a bulk link."""
        self._opened: list[FaultProxy] = []
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(CALL_SECONDS):
            raise TimeoutError("the proxies do not start")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CALL_SECONDS)

    def open(self, target_port: int) -> FaultProxy:
        """Stand before a port of this machine, whether or not anybody listens there yet."""
        proxy = FaultProxy(self, target_port)
        proxy.listen()
        self._opened.append(proxy)
        return proxy

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the proxies' thread and return what it returns."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside everything else; to be called in the proxies' thread."""
        self._tasks.create_task(work)

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._tasks:
            self._started.set()
            await self._stop.wait()
            for proxy in self._opened:
                await proxy.close()


def _who_dials(first_line: bytes) -> tuple[str, str]:
    """Name the Worker and the class of a link that is dialled; empty for any other request."""
    parts = first_line.decode("latin-1").split()
    query = parse_qs(urlsplit(parts[1]).query) if len(parts) > 1 else {}
    return query.get("worker_id", [""])[0], query.get("class", [""])[0]


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
