"""Heartbeats, joins, leaves and Routes on one Tracker, on SQLite and on PostgreSQL.

A real `meshnet-tracker serve` on loopback, with a Mesh of 20 models of 200 Layers that is covered
many times; who leaves is replaced by one that holds nothing, so that there is always something to
plan. `bench/tracker_clients.py` says who calls.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench.planner_meshes import presets
from bench.tracker_clients import Load
from meshnet_tracker.records import PresetRecord
from meshnet_tracker.store.store import Store
from tests.postgres import PostgresServer

MODELS = 20
LAYERS = 200
CHURN_PER_SECOND = 50.0
ROUTES_PER_SECOND = 200.0
START_SECONDS = 60.0
MORE_SECONDS = 240.0
"""For joining and settling before the window."""

ROWS = (
    "workers",
    "heartbeats_per_s",
    "heartbeat_p50_ms",
    "heartbeat_p99_ms",
    "heartbeat_max_ms",
    "routes_per_s",
    "route_p50_ms",
    "route_p99_ms",
    "joins_per_s",
    "leaves_per_s",
    "polls_per_s",
    "directives_per_s",
    "errors",
    "tracker_cpu_share",
    "planner_cpu_share",
    "database_cpu_share",
    "rss_mb",
    "rss_growth_mb",
)


@contextmanager
def database(kind: str, folder: Path) -> Iterator[tuple[str, psutil.Process | None]]:
    """Lend an empty database of this kind, and the process that runs it, if there is one."""
    if kind == "sqlite":
        yield str(folder / "tracker.sqlite3"), None
        return
    with PostgresServer() as server:
        name = asyncio.run(server.new_database())
        yield server.url(name), server.process()


async def prepare(url: str) -> None:
    """Make the tables and add the models."""
    store = Store.open(url)
    await store.migrate()
    for preset in presets(MODELS, LAYERS):
        await store.add_preset(PresetRecord(preset), await store.clock.now())
    await store.close()


@contextmanager
def tracker(url: str, folder: Path) -> Iterator[tuple[str, int, psutil.Process]]:
    """Run a Tracker; lends its host, its port and its process."""
    ready = folder / "ready"
    program = str(Path(sys.executable).parent / "meshnet-tracker")
    options = ("--port", "0", "--ready-file", str(ready), "--log-level", "warning")
    times = ("--heartbeat-seconds", "10", "--lost-after-seconds", "30")
    command = [program, "serve", "--database", url, *options, *times]
    profile = os.environ.get("MESHNET_BENCH_PROFILE")
    if profile:
        command = [sys.executable, "-m", "cProfile", "-o", profile, *command]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        host, port = ready.read_text().strip().removeprefix("http://").split(":")
        yield host, int(port), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)
        sys.stderr.write((folder / "log").read_text()[-3000:])


def measure(kind: str, given: argparse.Namespace) -> dict[str, Any]:
    """Play the load on one kind of database."""
    with tempfile.TemporaryDirectory() as name, database(kind, Path(name)) as (url, server):
        asyncio.run(prepare(url))
        with tracker(url, Path(name)) as (host, port, process):
            load = Load(
                host=host,
                port=port,
                workers=given.workers,
                models=MODELS,
                layers=LAYERS,
                seconds=given.seconds,
                churn_per_second=given.churn,
                routes_per_second=given.routes,
            )
            return {"workers": given.workers, **_play(load, process, server)}


def _play(load: Load, process: psutil.Process, server: psutil.Process | None) -> dict[str, Any]:
    command = (sys.executable, "-m", "bench.tracker_clients", msgspec.json.encode(load).decode())
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as clients:
        assert clients.stdout is not None
        lines = iter(clients.stdout)
        assert next(lines, "").strip() == "open"
        before = _used(process, server)
        assert next(lines, "").strip() == "close"
        after = _used(process, server)
        found: dict[str, Any] = json.loads(next(lines))
        clients.wait(MORE_SECONDS)
    for name in ("tracker", "planner", "database"):
        found[f"{name}_cpu_share"] = round((after[name] - before[name]) / load.seconds, 3)
    found["rss_mb"] = round(after["rss"] / 1e6, 1)
    found["rss_growth_mb"] = round((after["rss"] - before["rss"]) / 1e6, 1)
    return found


def _used(process: psutil.Process, server: psutil.Process | None) -> dict[str, float]:
    serving = [server, *server.children(recursive=True)] if server is not None else []
    return {
        "tracker": _cpu_seconds(process),
        "planner": sum(map(_cpu_seconds, process.children(recursive=True))),
        "database": sum(map(_cpu_seconds, serving)),
        "rss": process.memory_info().rss,
    }


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Print the table, and the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--churn", type=float, default=CHURN_PER_SECOND)
    parser.add_argument("--routes", type=float, default=ROUTES_PER_SECOND)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--database", choices=("sqlite", "postgresql", "both"), default="both")
    given = parser.parse_args()
    kinds = ("sqlite", "postgresql") if given.database == "both" else (given.database,)
    measured = {kind: measure(kind, given) for kind in kinds}
    print(f"{'':<22}" + "".join(f"{kind:>14}" for kind in kinds))
    for row in ROWS:
        print(f"{row:<22}" + "".join(f"{measured[kind][row]:>14}" for kind in kinds))
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
