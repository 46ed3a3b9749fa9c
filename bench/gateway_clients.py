"""Clients of `bench.gateway`: they read bytes and parse nothing."""

import asyncio
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import aiohttp
import msgspec
import psutil

from bench.gateway_processes import MODEL

CHAT = "/v1/chat/completions"
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer bench"}
_DATA = b"data:"
_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the upstream."""

    name: str
    url: str
    process: psutil.Process

    def cpu_seconds(self) -> float:
        """Add up what the process and what it has started have used so far."""
        times = [one.cpu_times() for one in (self.process, *self.process.children(recursive=True))]
        return sum(one.user + one.system for one in times)

    def session(self, connections: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections),
            timeout=aiohttp.ClientTimeout(total=_SECONDS),
            headers=HEADERS,
        )


def body(*, stream: bool, model: str = MODEL, **wishes: float) -> bytes:
    """Write a request's body; what is wished for goes to the upstream as metadata."""
    messages = [{"role": "user", "content": "Write about the sea."}]
    request: dict[str, Any] = {"model": model, "messages": messages, "stream": stream}
    if wishes:
        request["metadata"] = {name: str(value) for name, value in wishes.items()}
    return msgspec.json.encode(request)


async def one_after_the_other(way: Way, count: int) -> list[float]:
    """Time whole answers."""
    asked, times = body(stream=False), []
    async with way.session(1) as session:
        for _ in range(count):
            began = time.perf_counter()
            await _whole(session, way, asked)
            times.append(time.perf_counter() - began)
    return times


async def first_events(way: Way, count: int) -> list[float]:
    """Time the first event of streams, one stream after the other."""
    asked, times = body(stream=True), []
    async with way.session(1) as session:
        for _ in range(count):
            times.append(await _stream(session, way, asked))
    return times


async def requests_per_second(way: Way, connections: int, count: int) -> float:
    """Ask for whole answers over some connections at once."""
    asked = body(stream=False)
    left = iter(range(count))

    async def ask(session: aiohttp.ClientSession) -> None:
        for _ in left:
            await _whole(session, way, asked)

    async with way.session(connections) as session:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(connections):
                tasks.create_task(ask(session))
        return count / (time.perf_counter() - began)


async def streams_at_once(way: Way, count: int, asked: bytes) -> None:
    """Read some streams to their end, all at once."""
    async with way.session(count) as session, asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(_stream(session, way, asked))


class HeldStreams:
    """Streams that wait; notes when each of their lines came."""

    def __init__(self) -> None:
        self.moments: list[list[float]] = []

    async def hold(self, way: Way, count: int, asked: bytes) -> None:
        """Open so many and listen until cancelled."""
        async with way.session(count) as session, asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(self._listen(session, way, asked))

    def jitter_seconds(self, every: float) -> float:
        """Say by how much the worst interval between two lines missed the one that was set."""
        gaps = [after - before for own in self.moments for before, after in pairwise(own[1:])]
        return max((abs(gap - every) for gap in gaps), default=0.0)

    async def _listen(self, session: aiohttp.ClientSession, way: Way, asked: bytes) -> None:
        own: list[float] = []
        self.moments.append(own)
        async with session.post(way.url + CHAT, data=asked) as response:
            async for _ in response.content:
                own.append(time.perf_counter())


async def _whole(session: aiohttp.ClientSession, way: Way, asked: bytes) -> None:
    async with session.post(way.url + CHAT, data=asked) as response:
        answer = await response.read()
        assert response.status == 200, answer


async def _stream(session: aiohttp.ClientSession, way: Way, asked: bytes) -> float:
    """Read a stream to its end; returns the seconds to its first event."""
    began, first = time.perf_counter(), 0.0
    ending = b""
    async with session.post(way.url + CHAT, data=asked) as response:
        assert response.status == 200, await response.read()
        async for data in response.content.iter_any():
            if not first and _DATA in data:
                first = time.perf_counter() - began
            ending = (ending + data)[-16:]
    assert b"[DONE]" in ending, ending
    return first
