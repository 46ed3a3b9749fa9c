"""Workers of the load test: what they hold, what they say, and how they obey at once."""

import asyncio
import random
from collections import deque
from collections.abc import Callable

import msgspec

from bench.tracker_lines import head_of
from meshnet_common.protocol.messages import (
    Capabilities,
    Directive,
    DirectiveKind,
    Heartbeat,
    RegisterWorker,
    ShardReport,
    ShardState,
)
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import WorkerView

BUSY_SHARE = 0.5
"""So many Workers have other load figures with each heartbeat."""


class Turn:
    """Lets one call of a Worker be under way at a time, at no cost when nobody else calls."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, then: Callable[[], None]) -> None:
        """Do this when it is this caller's turn, which it must leave afterwards."""
        if self._is_taken:
            self._waiting.append(then)
            return
        self._is_taken = True
        then()

    def leave(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._is_taken = False

    async def __aenter__(self) -> None:
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Who gives up at the end of the load is passed over.
        self.take(lambda: self.leave() if taken.done() else taken.set_result(None))
        await taken

    async def __aexit__(self, *_: object) -> None:
        self.leave()


class SimulatedWorker:
    """One Worker: what it holds, and what it says."""

    def __init__(self, view: WorkerView, worker_id: str) -> None:
        self.worker_id = worker_id
        self.view = view
        self.token = ""
        self.beat_head = b""
        self.epoch = 0
        self.beats = 0
        self.joined_at = 0.0
        self.shards: tuple[ShardReport, ...] = ()
        self.is_gone = False
        self.turn = Turn()

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

    def admit(self, token: str) -> None:
        """Show this token from now on."""
        self.token = token
        self.beat_head = head_of("POST", f"{self.where}/heartbeat", token)

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
