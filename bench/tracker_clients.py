"""The load of `bench/tracker_load.py`: simulated Workers and clients in a process of their own.

They share some connections and speak just enough HTTP, so that they cost little beside the Tracker.
A time is taken from the moment at which a call was due, not at which it was sent. Workers obey at
once: what they are ordered to load is ready in the same second. They ask for directives after a
heartbeat instead of holding a long poll each: 10,000 connections would measure the system, not the
Tracker; who has joined lately asks each time, the others now and then.
"""

import asyncio
import heapq
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench.planner_meshes import big_mesh
from bench.simulated_workers import SimulatedWorker
from bench.tracker_lines import Lines
from meshnet_common.protocol.messages import (
    DirectiveList,
    DirectiveReport,
    DirectiveState,
    Registered,
)

HEARTBEAT_SECONDS = 10.0
ASKS_OFTEN_SECONDS = 40.0
ASKS_EVERY = 6
"""Others ask with every so manieth heartbeat."""
SETTLE_SECONDS = 10.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be played."""

    host: str
    port: int
    workers: int
    models: int
    layers: int
    seconds: float
    churn_per_second: float
    routes_per_second: float


@dataclass
class Tally:
    """What was measured; only within the window."""

    is_open: bool = False
    beats: list[float] = field(default_factory=list)
    routes: list[float] = field(default_factory=list)
    joins: list[float] = field(default_factory=list)
    polls: list[float] = field(default_factory=list)
    leaves: int = 0
    directives: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def error(self, what: str) -> None:
        if self.is_open:
            self.errors[what] += 1


class Player:
    """Plays the load against one Tracker."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._lines = Lines(load.host, load.port)
        self._draw = random.Random(1)
        self._due: list[tuple[float, int, SimulatedWorker]] = []
        self._workers: list[SimulatedWorker] = []
        self._count = 0
        self._names = itertools.count()
        self._running: set[asyncio.Task[None]] = set()
        self.tally = Tally()

    async def play(self) -> None:
        """Let everybody join, wait until they are settled, and then measure."""
        await self._join_all()
        now = asyncio.get_running_loop().time
        opens = now() + SETTLE_SECONDS
        closes = opens + self._load.seconds
        churn_at, route_at = now(), now()
        while now() < closes:
            if not self.tally.is_open and now() >= opens:
                self.tally.is_open = True
                print("open", flush=True)
            while self._due and self._due[0][0] <= now():
                due, _, worker = heapq.heappop(self._due)
                self._start(self._beat(worker, due))
            while churn_at <= now():
                self._start(self._churn())
                churn_at += 1 / self._load.churn_per_second
            while route_at <= now():
                self._start(self._route(route_at))
                route_at += 1 / self._load.routes_per_second
            await asyncio.sleep(0.002)
        self.tally.is_open = False
        print("close", flush=True)
        for task in self._running:
            task.cancel()

    def _start(self, call: Awaitable[None]) -> None:
        async def guarded() -> None:
            try:
                await call
            except (OSError, msgspec.MsgspecError) as error:
                self.tally.error(type(error).__name__)

        task = asyncio.get_running_loop().create_task(guarded())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _join_all(self) -> None:
        mesh = big_mesh(self._load.workers, self._load.models, self._load.layers)
        async with asyncio.TaskGroup() as tasks:
            for view in mesh.workers:
                worker = SimulatedWorker(view, view.worker_id)
                for held in view.held:
                    key = held.variant
                    worker.hold(key.model, key.quantization, held.shard_range, self._load.layers)
                self._workers.append(worker)
                tasks.create_task(self._first_join(worker))
        now = asyncio.get_running_loop().time()
        for index, worker in enumerate(self._workers):
            self._put(worker, now + HEARTBEAT_SECONDS * index / len(self._workers))

    async def _first_join(self, worker: SimulatedWorker) -> None:
        await self._register(worker)
        await self._call("beat", "POST", f"{worker.where}/heartbeat", worker)

    def _put(self, worker: SimulatedWorker, due: float) -> None:
        self._count += 1
        heapq.heappush(self._due, (due, self._count, worker))

    async def _register(self, worker: SimulatedWorker) -> None:
        status, body = await self._lines.call("POST", "/v1/workers", worker.registration())
        if status != 201:
            self.tally.error(f"join {status}")
            return
        worker.token = msgspec.json.decode(body, type=Registered).token

    async def _call(self, what: str, method: str, path: str, worker: SimulatedWorker) -> bytes:
        body = worker.heartbeat(self._draw) if what == "beat" else b""
        status, answer = await self._lines.call(method, path, body, worker.token)
        if status >= 300:
            self.tally.error(f"{what} {status}")
        return answer

    async def _beat(self, worker: SimulatedWorker, due: float) -> None:
        self._put(worker, due + HEARTBEAT_SECONDS)
        async with worker.turn:
            if worker.is_gone:
                return
            await self._call("beat", "POST", f"{worker.where}/heartbeat", worker)
            self._time(self.tally.beats, due)
            worker.beats += 1
            now = asyncio.get_running_loop().time()
            is_fresh = now - worker.joined_at < ASKS_OFTEN_SECONDS
            if is_fresh or worker.beats % ASKS_EVERY == 0:
                await self._ask(worker)

    async def _ask(self, worker: SimulatedWorker) -> None:
        began = asyncio.get_running_loop().time()
        path = f"{worker.where}/directives?after={worker.epoch}&wait=0"
        answer = await self._call("poll", "GET", path, worker)
        self._time(self.tally.polls, began)
        for directive in msgspec.json.decode(answer, type=DirectiveList).directives:
            worker.epoch = max(worker.epoch, directive.epoch)
            worker.obey(directive, self._load.layers)
            self.tally.directives += self.tally.is_open
            done = msgspec.json.encode(DirectiveReport(state=DirectiveState.READY))
            where = f"{worker.where}/directives/{directive.id}"
            status, _ = await self._lines.call("POST", where, done, worker.token)
            if status >= 300:
                self.tally.error(f"report {status}")

    async def _churn(self) -> None:
        """Let one Worker go and another one come that holds nothing."""
        place = self._draw.randrange(len(self._workers))
        leaver = self._workers[place]
        joiner = SimulatedWorker(leaver.view, f"{leaver.view.worker_id}-{next(self._names)}")
        self._workers[place] = joiner
        async with joiner.turn:
            async with leaver.turn:
                leaver.is_gone = True
                await self._call("leave", "DELETE", leaver.where, leaver)
                self.tally.leaves += self.tally.is_open
            began = asyncio.get_running_loop().time()
            await self._register(joiner)
            self._time(self.tally.joins, began)
            joiner.joined_at = began
        await self._beat(joiner, asyncio.get_running_loop().time())

    async def _route(self, due: float) -> None:
        model = f"m{self._draw.randrange(self._load.models):02}"
        status, _ = await self._lines.call("GET", f"/v1/route/{model}")
        if status != 200:
            self.tally.error(f"route {status}")
        self._time(self.tally.routes, due)

    def _time(self, times: list[float], due: float) -> None:
        if self.tally.is_open:
            times.append(asyncio.get_running_loop().time() - due)


def figures(tally: Tally, seconds: float) -> dict[str, Any]:
    """Sum up what was measured."""
    return {
        "heartbeats_per_s": round(len(tally.beats) / seconds, 1),
        "heartbeat_p50_ms": percentile_ms(tally.beats, 0.5),
        "heartbeat_p99_ms": percentile_ms(tally.beats, 0.99),
        "heartbeat_max_ms": percentile_ms(tally.beats, 1.0),
        "routes_per_s": round(len(tally.routes) / seconds, 1),
        "route_p50_ms": percentile_ms(tally.routes, 0.5),
        "route_p99_ms": percentile_ms(tally.routes, 0.99),
        "joins_per_s": round(len(tally.joins) / seconds, 1),
        "leaves_per_s": round(tally.leaves / seconds, 1),
        "polls_per_s": round(len(tally.polls) / seconds, 1),
        "directives_per_s": round(tally.directives / seconds, 1),
        "errors": sum(tally.errors.values()),
        "errors_by_kind": dict(tally.errors),
    }


def percentile_ms(times: list[float], share: float) -> float:
    """Return the time that this share of all stays below, in milliseconds."""
    if not times:
        return 0.0
    ordered = sorted(times)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 2)


def main() -> None:
    """Play the load that the only argument describes; print the figures as the last line."""
    load = msgspec.json.decode(sys.argv[1], type=Load)
    player = Player(load)
    asyncio.run(player.play())
    print(json.dumps(figures(player.tally, load.seconds)), flush=True)


if __name__ == "__main__":
    main()
