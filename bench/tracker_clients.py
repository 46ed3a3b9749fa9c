"""The load of `bench/tracker_load.py`: simulated Workers and clients in a process of their own.

They share some connections, and no task waits for a heartbeat or a Route, so that they cost little
beside the Tracker; every answer is checked all the same. A time is taken from the moment at which a
call was due. Workers obey at once: what they are ordered to load is ready in the same second. They
ask for directives after a heartbeat, who has joined lately each time: 10,000 long polls would
measure the system, not the Tracker.
"""

import asyncio
import gc
import heapq
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import uvloop

from bench.planner_meshes import big_mesh
from bench.simulated_workers import SimulatedWorker
from bench.tracker_lines import Lines, head_of, with_body
from meshnet_common.protocol.messages import (
    DirectiveList,
    DirectiveReport,
    DirectiveState,
    HeartbeatReply,
    Registered,
    RouteAnswer,
)

HEARTBEAT_SECONDS = 10.0
ASKS_OFTEN_SECONDS = 40.0
ASKS_EVERY = 6
"""Others ask with every so manieth heartbeat."""
SETTLE_SECONDS = 10.0
JOIN_AGAIN_SECONDS = 1.0
LOOK_SECONDS = 0.002

_REPLIES = msgspec.json.Decoder(HeartbeatReply)
_ROUTES = msgspec.json.Decoder(RouteAnswer)


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
        self._loop = asyncio.get_running_loop()
        self.tally = Tally()

    async def play(self) -> None:
        """Let everybody join, wait until they are settled, and then measure."""
        await self._lines.open()
        await self._join_all()
        # Ten thousand Workers that stay need not be looked through again and again.
        gc.collect()
        gc.freeze()
        now = self._loop.time
        opens = now() + SETTLE_SECONDS
        closes = opens + self._load.seconds
        churn_at, route_at = now(), now()
        while now() < closes:
            if not self.tally.is_open and now() >= opens:
                self.tally.is_open = True
                print("open", flush=True)
            while self._due and self._due[0][0] <= now():
                due, _, worker = heapq.heappop(self._due)
                self._beat(worker, due)
            while churn_at <= now():
                self._start(self._churn())
                churn_at += 1 / self._load.churn_per_second
            while route_at <= now():
                self._route(route_at)
                route_at += 1 / self._load.routes_per_second
            await asyncio.sleep(LOOK_SECONDS)
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

        task = self._loop.create_task(guarded())
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
        now = self._loop.time()
        for index, worker in enumerate(self._workers):
            self._put(worker, now + HEARTBEAT_SECONDS * index / len(self._workers))

    async def _first_join(self, worker: SimulatedWorker) -> None:
        # All of them at once may be too many; they come again, as Workers do.
        while not await self._register(worker):  # noqa: ASYNC110 - it has no event to wait for
            await asyncio.sleep(JOIN_AGAIN_SECONDS)
        beat = with_body(worker.beat_head, worker.heartbeat(self._draw))
        self._check("beat", (await self._lines.call(beat))[0])

    def _put(self, worker: SimulatedWorker, due: float) -> None:
        self._count += 1
        heapq.heappush(self._due, (due, self._count, worker))

    async def _register(self, worker: SimulatedWorker) -> bool:
        request = with_body(head_of("POST", "/v1/workers"), worker.registration())
        status, body = await self._lines.call(request)
        if status == 201:
            worker.admit(msgspec.json.decode(body, type=Registered).token)
        return self._check("join", status, 201)

    def _check(self, what: str, status: int, wanted: int = 200) -> bool:
        if status != wanted:
            self.tally.error(f"{what} {status}")
        return status == wanted

    def _beat(self, worker: SimulatedWorker, due: float) -> None:
        if worker.is_gone:
            return
        self._put(worker, due + HEARTBEAT_SECONDS)
        worker.turn.take(partial(self._send_beat, worker, due))

    def _send_beat(self, worker: SimulatedWorker, due: float) -> None:
        if worker.is_gone:
            worker.turn.leave()
            return
        beat = with_body(worker.beat_head, worker.heartbeat(self._draw))
        self._lines.send(beat, partial(self._beaten, worker, due))

    def _beaten(self, worker: SimulatedWorker, due: float, status: int, body: bytes) -> None:
        self._time(self.tally.beats, due)
        self._read("beat", status, body, _REPLIES)
        worker.beats += 1
        age_seconds = self._loop.time() - worker.joined_at
        if age_seconds < ASKS_OFTEN_SECONDS or worker.beats % ASKS_EVERY == 0:
            self._start(self._ask_in_turn(worker))
        else:
            worker.turn.leave()

    def _read(
        self, what: str, status: int, body: bytes, decoder: msgspec.json.Decoder[Any]
    ) -> None:
        if self._check(what, status):
            try:
                decoder.decode(body)
            except msgspec.MsgspecError:
                self.tally.error(f"{what} body")

    async def _ask_in_turn(self, worker: SimulatedWorker) -> None:
        try:
            await self._ask(worker)
        finally:
            worker.turn.leave()

    async def _ask(self, worker: SimulatedWorker) -> None:
        began = self._loop.time()
        path = f"{worker.where}/directives?after={worker.epoch}&wait=0"
        request = with_body(head_of("GET", path, worker.token))
        status, answer = await self._lines.call(request)
        self._check("poll", status)
        self._time(self.tally.polls, began)
        for directive in msgspec.json.decode(answer, type=DirectiveList).directives:
            worker.epoch = max(worker.epoch, directive.epoch)
            worker.obey(directive, self._load.layers)
            self.tally.directives += self.tally.is_open
            done = msgspec.json.encode(DirectiveReport(state=DirectiveState.READY))
            head = head_of("POST", f"{worker.where}/directives/{directive.id}", worker.token)
            self._check("report", (await self._lines.call(with_body(head, done)))[0])

    async def _churn(self) -> None:
        """Let one Worker go and another one come that holds nothing."""
        place = self._draw.randrange(len(self._workers))
        leaver = self._workers[place]
        joiner = SimulatedWorker(leaver.view, f"{leaver.view.worker_id}-{next(self._names)}")
        self._workers[place] = joiner
        async with joiner.turn:
            async with leaver.turn:
                leaver.is_gone = True
                leave = with_body(head_of("DELETE", leaver.where, leaver.token))
                self._check("leave", (await self._lines.call(leave))[0], 204)
                self.tally.leaves += self.tally.is_open
            began = self._loop.time()
            has_joined = await self._register(joiner)
            self._time(self.tally.joins, began)
            joiner.joined_at = began
        if has_joined:
            self._beat(joiner, self._loop.time())

    def _route(self, due: float) -> None:
        model = f"m{self._draw.randrange(self._load.models):02}"
        request = with_body(head_of("GET", f"/v1/route/{model}"))
        self._lines.send(request, partial(self._routed, due))

    def _routed(self, due: float, status: int, body: bytes) -> None:
        self._time(self.tally.routes, due)
        self._read("route", status, body, _ROUTES)

    def _time(self, times: list[float], due: float) -> None:
        if self.tally.is_open:
            times.append(self._loop.time() - due)


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
    print(json.dumps(uvloop.run(_played(load))), flush=True)


async def _played(load: Load) -> dict[str, Any]:
    player = Player(load)
    await player.play()
    return figures(player.tally, load.seconds)


if __name__ == "__main__":
    main()
