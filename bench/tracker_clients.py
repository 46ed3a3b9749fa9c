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
from collections import Counter, deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench.planner_meshes import big_mesh
from meshnet_common.protocol.messages import (
    Capabilities,
    Directive,
    DirectiveKind,
    DirectiveList,
    DirectiveReport,
    DirectiveState,
    Heartbeat,
    Registered,
    RegisterWorker,
    ShardReport,
    ShardState,
)
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import WorkerView

LINES = 64
HEARTBEAT_SECONDS = 10.0
ASKS_OFTEN_SECONDS = 40.0
ASKS_EVERY = 6
"""Others ask with every so manieth heartbeat."""
SETTLE_SECONDS = 10.0
BUSY_SHARE = 0.5
"""So many Workers have other load figures with each heartbeat."""


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


class SimulatedWorker:
    """One Worker: what it holds, and what it says."""

    def __init__(self, view: WorkerView, worker_id: str) -> None:
        self.worker_id = worker_id
        self.view = view
        self.token = ""
        self.epoch = 0
        self.beats = 0
        self.joined_at = 0.0
        self.shards: tuple[ShardReport, ...] = ()
        self.is_gone = False
        self.turn = asyncio.Lock()

    @property
    def where(self) -> str:
        return f"/v1/workers/{self.worker_id}"

    def registration(self) -> bytes:
        view = self.view
        offered = Capabilities(
            vram_bytes=view.vram_bytes,
            quantizations=tuple(view.quantizations),
            benchmark_tokens_per_sec=view.speed,
            benchmark_model="layer",
            device="cuda",
            decode_tokens_per_sec_per_layer=view.speed,
            link_bytes_per_sec=view.uplink_bytes_per_sec,
            region=view.region,
        )
        body = RegisterWorker(
            worker_id=self.worker_id,
            url=f"http://{self.worker_id}:7000",
            version="0.1.0",
            capabilities=offered,
        )
        return msgspec.json.encode(body)

    def hold(self, model: str, quantization: str, run: ShardRange, layers: int) -> None:
        self.shards += (
            ShardReport(
                model=model,
                quantization=quantization,
                start_layer=run.start,
                end_layer=run.end,
                state=ShardState.READY,
                is_tail=run.end == layers,
            ),
        )

    def heartbeat(self, draw: random.Random) -> bytes:
        is_busy = draw.random() < BUSY_SHARE
        body = Heartbeat(
            shards=self.shards,
            sessions=draw.randrange(8) if is_busy else 0,
            queued=draw.randrange(3) if is_busy else 0,
            kv_bytes_free=draw.randrange(10**9) if is_busy else 10**9,
            directive_epoch=self.epoch,
            link_bytes_per_sec=self.view.uplink_bytes_per_sec,
            download_bytes_per_sec=self.view.download_bytes_per_sec,
        )
        return msgspec.json.encode(body)

    def obey(self, directive: Directive, layers: int) -> None:
        ordered = ShardRange(directive.start_layer, directive.end_layer)
        if directive.kind == DirectiveKind.LOAD_SHARD:
            self.hold(directive.model, directive.quantization, ordered, layers)
            return
        old, self.shards = self.shards, ()
        for shard in old:
            is_other = (shard.model, shard.quantization) != (
                directive.model,
                directive.quantization,
            )
            for piece in (shard.shard_range,) if is_other else shard.shard_range.minus(ordered):
                self.hold(shard.model, shard.quantization, piece, layers)


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
