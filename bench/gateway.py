"""What the Gateway adds to a request: beside a bare proxy, and beside LiteLLM's where that is.

All are processes of their own on loopback in front of one upstream that answers at once, and take
turns in rounds, so that whatever else the machine does hits all of them. Only ratios and
differences within a round count; of the rounds the median is shown.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import uvloop

from bench.gateway_clients import (
    HeldStreams,
    Way,
    body,
    first_events,
    one_after_the_other,
    requests_per_second,
    streams_at_once,
)
from bench.gateway_processes import EVENTS, HELD_MODEL, MODEL
from demo.processes import Program, Programs, command

SEQUENTIAL = 200
STREAMS = 50
CONNECTIONS = 32
CONCURRENT = 1500
SLOWER = 10
"""LiteLLM gets this part of the requests."""

PACED_STREAMS = 8
PACED_EVENTS = 400
PAUSE_SECONDS = 0.005
HELD = 500
HELD_SECONDS = 8.0
KEEP_ALIVE_SECONDS = 1.0
LITELLM_START_SECONDS = 120.0
LITELLM_ENVIRONMENT = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    # It listens on loopback only, and none of the others asks for a key either.
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}


@dataclass
class Figures:
    """What was measured of one way in each round."""

    p50: list[float] = field(default_factory=list)
    p95: list[float] = field(default_factory=list)
    first_event: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Of its process, for each request at full load: says least of what else the machine did."""


def gateway_settings(upstream: str) -> dict[str, object]:
    """Let through whatever comes, and of one model one request at a time."""
    ample = {"base_url": upstream, "parallel_instances": 2 * CONNECTIONS}
    scarce = {"base_url": upstream, "gpu_group": "held", "max_concurrent_requests": 1}
    return {
        "keep_alive_seconds": KEEP_ALIVE_SECONDS,
        "chat_models": [
            {"id": MODEL, "endpoints": [ample]},
            {"id": HELD_MODEL, "endpoints": [scarce], "hold_seconds": 600},
        ],
    }


def start(programs: Programs, name: str, *arguments: str) -> Program:
    """Start one of the small programs beside the Gateway."""
    module = (sys.executable, "-m", "bench.gateway_processes")
    program = programs.start(name, (*module, name, *arguments))
    programs.wait_until_ready(program)
    return program


def start_gateway(programs: Programs, folder: Path, upstream: str) -> Program:
    """Start a Gateway in front of the upstream."""
    config = folder / "gateway.json"
    config.write_text(json.dumps(gateway_settings(upstream)))
    options = ("serve", "--config", str(config), "--port", "0", "--log-level", "warning")
    program = programs.start("gateway", (command("meshnet-gateway"), *options))
    programs.wait_until_ready(program)
    return program


@contextmanager
def litellm(executable: str, folder: Path, upstream: str) -> Iterator[Way]:
    """Run LiteLLM's proxy with one process."""
    config = folder / "litellm.json"
    asked = {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "bench"}
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": asked}]}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    options = ("--config", str(config), "--host", "127.0.0.1", "--port", str(port))
    with (folder / "litellm.log").open("wb") as log:
        process = subprocess.Popen(
            (executable, *options, "--num_workers", "1"),
            stdout=log,
            stderr=log,
            env={**os.environ, **LITELLM_ENVIRONMENT},
            start_new_session=True,
        )
    try:
        _wait_until_alive(f"{url}/health/liveliness", process)
        yield Way("litellm", url, psutil.Process(process.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _wait_until_alive(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LITELLM_START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"{url} does not answer; status {process.poll()}")


async def measure(way: Way, figures: Figures, share: float) -> None:
    """Take one turn of a round; `share` of the usual requests."""
    times = await one_after_the_other(way, int(SEQUENTIAL * share))
    figures.p50.append(statistics.median(times))
    figures.p95.append(statistics.quantiles(times, n=20)[-1])
    firsts = await first_events(way, int(STREAMS * share))
    figures.first_event.append(statistics.median(firsts))
    count = int(CONCURRENT * share)
    before = way.cpu_seconds()
    figures.per_second.append(await requests_per_second(way, CONNECTIONS, count))
    figures.cpu.append((way.cpu_seconds() - before) / count)


async def take_rounds(ways: Sequence[Way], rounds: int) -> dict[str, Figures]:
    """Let all ways take turns, in another order each round."""
    figures = {way.name: Figures() for way in ways}
    for way in ways:
        await requests_per_second(way, CONNECTIONS, CONNECTIONS)
    for number in range(rounds):
        for way in (*ways[number % len(ways) :], *ways[: number % len(ways)]):
            share = 1 / SLOWER if way.name == "litellm" else 1.0
            await measure(way, figures[way.name], share)
    return figures


async def chunk_cpu_seconds(way: Way) -> float:
    """Find what one event of a stream costs its forwarder, without what the stream costs."""

    async def cost(events: int) -> float:
        asked = body(stream=True, events=events, pause_seconds=PAUSE_SECONDS)
        before = way.cpu_seconds()
        await streams_at_once(way, PACED_STREAMS, asked)
        return way.cpu_seconds() - before

    await cost(2)
    more = await cost(PACED_EVENTS) - await cost(2)
    return more / (PACED_STREAMS * (PACED_EVENTS - 2))


async def held_streams(way: Way) -> tuple[float, float]:
    """Hold many streams; returns the megabytes they cost and the worst keep-alive's seconds."""
    before = way.process.memory_info().rss
    held = HeldStreams()
    asked = body(stream=True, model=HELD_MODEL, hold_seconds=600.0)
    with suppress(TimeoutError):
        async with asyncio.timeout(HELD_SECONDS):
            await held.hold(way, HELD, asked)
    grown = way.process.memory_info().rss - before
    listening = sum(len(moments) > 1 for moments in held.moments)
    assert listening >= HELD - 1, f"only {listening} of {HELD} were told that they wait"
    return grown / 1e6, held.jitter_seconds(KEEP_ALIVE_SECONDS)


def summary(figures: dict[str, Figures]) -> dict[str, float]:
    """Compare what was measured in the same rounds."""
    gateway, bare = figures["gateway"], figures["bare"]
    found = {
        "added_p50_ms": 1000 * _median_gap(gateway.p50, bare.p50),
        "added_p95_ms": 1000 * _median_gap(gateway.p95, bare.p95),
        "rps_share_of_bare": _median_ratio(gateway.per_second, bare.per_second),
        "cpu_added_ms": 1000 * _median_gap(gateway.cpu, bare.cpu),
        "ttft_added_ms": 1000 * _median_gap(gateway.first_event, bare.first_event),
    }
    if "litellm" in figures:
        found["times_litellm"] = _median_ratio(gateway.per_second, figures["litellm"].per_second)
    return found


def _median_gap(these: Sequence[float], those: Sequence[float]) -> float:
    return statistics.median(a - b for a, b in zip(these, those, strict=True))


def _median_ratio(these: Sequence[float], those: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(these, those, strict=True))


def show(figures: dict[str, Figures]) -> None:
    """Print the table: the median of the rounds, and the least and the most."""
    print(f"whole answers, then streams of {EVENTS} events, {CONNECTIONS} connections at most")
    heads = ("p50 ms", "p95 ms", "first event ms", "CPU ms", "requests/s")
    print(f"{'':10}" + "".join(f"{head:>26}" for head in heads))
    for name, one in figures.items():
        timed = (one.p50, one.p95, one.first_event, one.cpu)
        cells = [_cell([1000 * value for value in values]) for values in timed]
        print(f"{name:10}" + "".join(f"{cell:>26}" for cell in (*cells, _cell(one.per_second))))


def _cell(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


async def run(ways: Sequence[Way], rounds: int) -> dict[str, float]:
    """Measure everything and print it."""
    figures = await take_rounds(ways, rounds)
    show(figures)
    found = summary(figures)
    way = next(way for way in ways if way.name == "gateway")
    found["chunk_cpu_ms"] = 1000 * await chunk_cpu_seconds(way)
    found["held_streams_mb"], found["held_jitter_s"] = await held_streams(way)
    return found


def main() -> None:
    """Read the command line, start everything, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--litellm",
        default=os.environ.get("LITELLM_PROXY") or shutil.which("litellm"),
        help="LiteLLM's proxy, from an environment of its own; LITELLM_PROXY, or on the PATH",
    )
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="meshnet-bench-")))
        programs = stack.enter_context(Programs(folder))
        upstream = start(programs, "upstream").url
        bare = start(programs, "bare", upstream)
        gateway = start_gateway(programs, folder, upstream)
        ways = [Way(one.name, one.url, psutil.Process(one.process.pid)) for one in (bare, gateway)]
        if given.litellm:
            ways.append(stack.enter_context(litellm(given.litellm, folder, upstream)))
        found = uvloop.run(run(ways, given.rounds))
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main()
