"""Minutes of mixed requests through the Gateway, while clients leave and its Endpoints restart.

Whole answers, streams and embeddings; every answer must come whole and unchanged, except those
that their client left. In the end nothing may be in flight or in line, and the Gateway may not
have grown. Fails where one of these does not hold.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
import psutil
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from bench.gateway_clients import CHAT, HEADERS, body
from bench.gateway_processes import DIMENSIONS, EMBEDDING, MODEL, WHOLE
from demo.processes import Program, Programs, command
from meshnet_common.edge.beside import beside

CLIENTS = 16
LEAVING_SHARE = 0.05
STREAM_EVENTS = 20
PAUSE_SECONDS = 0.002
RESTART_EVERY_SECONDS = 4.0
DOWN_SECONDS = 0.5
SETTLE_SECONDS = 10.0
WARM_SHARE = 0.25
MOST_GROWTH = 0.05

EMBEDDINGS = "/v1/embeddings"
EMBEDDER = "embedder"
GAUGES = ("in_flight", "waiting", "body_bytes")
STREAM = body(stream=True, events=STREAM_EVENTS, pause_seconds=PAUSE_SECONDS)
TIMEOUT = aiohttp.ClientTimeout(total=60)


class Endpoints:
    """Two upstreams that take turns to restart, each on a port of its own."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._running = [self._start(name, 0) for name in ("first", "second")]
        programs.wait_until_ready(*self._running)
        self.urls = [program.url for program in self._running]
        self.restarts = 0

    async def restart_by_turns(self) -> None:
        """Restart one after the other until cancelled."""
        while True:
            for number in range(len(self.urls)):
                await asyncio.sleep(RESTART_EVERY_SECONDS)
                await asyncio.to_thread(self._restart, number)
                self.restarts += 1

    def _restart(self, number: int) -> None:
        old = self._running[number]
        self._programs.stop(old)
        time.sleep(DOWN_SECONDS)
        port = int(self.urls[number].rsplit(":", 1)[1])
        self._running[number] = self._start(old.name, port)
        self._programs.wait_until_ready(self._running[number])

    def _start(self, name: str, port: int) -> Program:
        module = (sys.executable, "-m", "bench.gateway_processes", "upstream")
        return self._programs.start(name, (*module, "--port", str(port)))


def start_gateway(programs: Programs, folder: Path, urls: list[str]) -> Program:
    """Start a Gateway with a chat model at both upstreams, and an embedder that can fall back."""
    endpoints = [{"base_url": url, "parallel_instances": 6} for url in urls]
    first, second = ({"base_url": url, "gpu_group": f"embed-{url}"} for url in urls)
    embedder = {"id": EMBEDDER, "dimensions": DIMENSIONS, "endpoints": [first], "fallback": second}
    settings = {"chat_models": [{"id": MODEL, "endpoints": endpoints}]}
    config = folder / "gateway.json"
    config.write_text(json.dumps({**settings, "embedding_models": [embedder]}))
    options = ("serve", "--config", str(config), "--port", "0", "--log-level", "error")
    program = programs.start("gateway", (command("meshnet-gateway"), *options))
    programs.wait_until_ready(program)
    return program


class Clients:
    """Ask at random until the time is over, and count what comes of it."""

    def __init__(self, url: str, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        """Why requests were lost."""
        self._url = url
        self._random = random.Random(seed)

    async def ask_for(self, seconds: float) -> None:
        """Keep all clients asking."""
        until = time.monotonic() + seconds
        async with (
            aiohttp.ClientSession(
                timeout=TIMEOUT, headers=HEADERS, connector=aiohttp.TCPConnector(limit=0)
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(CLIENTS):
                tasks.create_task(self._ask(session, until))

    async def _ask(self, session: aiohttp.ClientSession, until: float) -> None:
        embedding = msgspec.json.encode({"model": EMBEDDER, "input": "the sea"})
        kinds = (
            partial(self._whole, session, CHAT, body(stream=False), WHOLE),
            partial(self._whole, session, EMBEDDINGS, embedding, EMBEDDING),
            partial(self._stream, session),
        )
        while time.monotonic() < until:
            kind = self._random.choice(kinds)
            leaves = self._random.random() < LEAVING_SHARE
            self.counts["requests"] += 1
            try:
                await kind(leaves)
            except (aiohttp.ClientError, TimeoutError, AssertionError) as error:
                self.counts["lost"] += 1
                self.reasons[repr(error)[:200]] += 1

    async def _whole(
        self, session: aiohttp.ClientSession, path: str, asked: bytes, told: bytes, leaves: bool
    ) -> None:
        if leaves:
            self.counts["left"] += 1
        async with (
            _leaving(self._random.uniform(0, 0.01) if leaves else None),
            session.post(self._url + path, data=asked) as response,
        ):
            answer = await response.read()
            assert (response.status, answer) == (200, told), (response.status, answer)

    async def _stream(self, session: aiohttp.ClientSession, leaves: bool) -> None:
        if leaves:
            self.counts["left"] += 1
        events = 0
        async with session.post(self._url + CHAT, data=STREAM) as response:
            assert response.status == 200, await response.read()
            async for line in response.content:
                events += line.startswith(b"data:")
                if leaves and events:
                    response.close()
                    return
        assert events == STREAM_EVENTS + 1, f"{events} events"


@asynccontextmanager
async def _leaving(after_seconds: float | None) -> AsyncIterator[None]:
    """End the block after a moment, without a fault."""
    if after_seconds is None:
        yield
        return
    try:
        async with asyncio.timeout(after_seconds):
            yield
    except TimeoutError:
        pass


def nonzero_gauges(url: str) -> list[str]:
    """List the Gateway's gauges of what is in flight or waits that are not zero."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        page = response.read().decode()
    return [
        f"{one.name}{one.labels}"
        for family in text_string_to_metric_families(page)
        for one in family.samples
        if one.name.endswith(GAUGES) and one.value
    ]


async def soak(
    endpoints: Endpoints, gateway: Program, seconds: float, seed: int
) -> dict[str, float]:
    """Ask for so long; the Gateway is warm after a quarter of it."""
    process = psutil.Process(gateway.process.pid)
    clients = Clients(gateway.url, seed)
    async with beside(endpoints.restart_by_turns()):
        await clients.ask_for(seconds * WARM_SHARE)
        warm = process.memory_info().rss
        await clients.ask_for(seconds * (1 - WARM_SHARE))
    left_over = await _settled(gateway.url)
    counts = clients.counts
    for reason, count in clients.reasons.most_common():
        print(f"lost {count}: {reason}")
    print("not zero:", ", ".join(left_over) or "nothing")
    return {
        "requests": counts["requests"],
        "lost": counts["lost"],
        "left": counts["left"],
        "restarts": endpoints.restarts,
        "gauges_nonzero": len(left_over),
        "rss_growth": round(process.memory_info().rss / warm - 1, 4),
    }


async def _settled(url: str) -> list[str]:
    until = time.monotonic() + SETTLE_SECONDS
    left_over = nonzero_gauges(url)
    while left_over and time.monotonic() < until:
        await asyncio.sleep(0.2)
        left_over = nonzero_gauges(url)
    return left_over


def run(seconds: float, seed: int) -> dict[str, float]:
    """Start everything, soak for so long, and end everything."""
    with (
        tempfile.TemporaryDirectory(prefix="meshnet-soak-") as name,
        Programs(Path(name)) as programs,
    ):
        endpoints = Endpoints(programs)
        gateway = start_gateway(programs, Path(name), endpoints.urls)
        return uvloop.run(soak(endpoints, gateway, seconds, seed))


def holds(found: dict[str, float]) -> bool:
    """Tell whether a soak came out well."""
    nothing_left = not found["lost"] and not found["gauges_nonzero"]
    return nothing_left and found["rss_growth"] < MOST_GROWTH


def main() -> int:
    """Read the command line, soak, print; returns 1 where something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = run(given.seconds, given.seed)
    print(json.dumps(found))
    return 0 if holds(found) else 1


if __name__ == "__main__":
    sys.exit(main())
