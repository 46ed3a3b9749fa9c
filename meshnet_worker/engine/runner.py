"""Carries out the daemon's commands on the device, one Batch or one loading step at a time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.arrivals import Arrivals, Arrived
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.device import block_positions, scratch_blocks
from meshnet_worker.engine.drawing import Drawing, Drawn, Mask, Wanted, draw_rows, no_mask
from meshnet_worker.engine.grammar import fault_code
from meshnet_worker.engine.groups import Groups
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.pool import BlockPool
from meshnet_worker.engine.scheduler import Lane, Waiting
from meshnet_worker.engine.shard import Shard
from meshnet_worker.engine.staging import Staging
from meshnet_worker.engine_port import (
    BATCH_TOKENS,
    ArmSession,
    CloseSession,
    DropLayers,
    Event,
    ExtendSession,
    OpenSession,
    RunSegment,
    SessionFailed,
    SizePool,
    Stepped,
    StepResult,
    TruncateSession,
)

Send = Callable[[Event, bytes], None]
MakeMask = Callable[[Shard, ArmSession], Mask]
"""Makes one Session's mask; what it raises fails that Session."""


@dataclass(slots=True)
class _Session:
    lane: Lane
    kv: SessionKv
    drawing: Drawing | None = None

    @property
    def is_ready(self) -> bool:
        return self.drawing is None or self.drawing.is_ready


@dataclass(slots=True)
class _Flat:
    """A Batch laid out in rows, ready to run."""

    lane: Lane
    rows: torch.Tensor
    segments: list[FlatSegment] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)


class BatchRunner:
    """The Sessions on this device and the segments that wait for a Batch."""

    def __init__(
        self,
        shards: dict[int, Shard],
        device: torch.device,
        send: Send,
        make_mask: MakeMask = lambda _shard, command: no_mask(command),
    ) -> None:
        self._shards = shards
        self._make_mask = make_mask
        self._device = device
        self._staging = Staging(device)
        self._send = send
        self.groups = Groups()
        self._sessions: dict[int, _Session] = {}
        self._pools: dict[int, BlockPool] = {}
        self._arrivals = Arrivals()

    @property
    def has_work(self) -> bool:
        return bool(self._arrivals.waiting)

    @torch.inference_mode()
    def size_pool(self, command: SizePool) -> None:
        """Give every Layer of a Shard so many KV Blocks."""
        self._pool(command.shard).resize(command.blocks)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def drop(self, command: DropLayers) -> None:
        """Fail the Sessions on Layers that were dropped; free the pool of a Shard that is gone."""
        dropped = ShardRange(command.start, command.end)
        for number, session in tuple(self._sessions.items()):
            lane = session.lane
            if lane.shard == command.shard and lane.shard_range.overlap(dropped) is not None:
                self._fail(number, f"{dropped} was dropped")
        if command.shard not in self._shards:
            self._pools.pop(command.shard, None)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def free_blocks(self) -> dict[int, dict[int, int]]:
        """Free KV Blocks by Shard and by Layer, of Layers that were ever used."""
        return {shard: pool.free_blocks() for shard, pool in self._pools.items()}

    @torch.inference_mode()
    def change(
        self, command: OpenSession | ArmSession | ExtendSession | TruncateSession | CloseSession
    ) -> None:
        """Open, arm, extend, roll back or close a Session."""
        match command:
            case OpenSession():
                self._open(command)
            case ArmSession() if command.session in self._sessions:
                self._arm(command)
            case ExtendSession() if command.session in self._sessions:
                self._reserve(command.session, command.positions)
            case ArmSession() | ExtendSession():
                # It crossed its Session's failure on the way here.
                pass
            case TruncateSession():
                # KV needs no word of it: the next segment simply starts lower.
                self._arrivals.forget(command.session)
            case CloseSession():
                self._close(command.session)

    def add(self, command: RunSegment, payload: bytes) -> None:
        session = self._sessions.get(command.session)
        # A segment may cross its Session's failure on the way here; the daemon knows already.
        if session is not None and command.draws and not session.is_ready:
            self._arrivals.hold_back(Arrived(command, payload))
        elif session is not None:
            self._admit(Arrived(command, payload))

    def admit_ready(self) -> None:
        """Let those segments wait for a Batch whose masks have been made."""
        for arrived in self._arrivals.take_ready(lambda number: self._sessions[number].is_ready):
            self._admit(arrived)

    def _admit(self, arrived: Arrived) -> None:
        session, tokens = arrived.command.session, arrived.command.tokens
        self._arrivals.add(self._sessions[session].lane, arrived)
        self.groups.feed(session, self._sessions[session].lane, tokens, time.perf_counter())

    def wait_seconds(self) -> float:
        """How long the next Batch may still wait for Sessions that belong to it."""
        return self.groups.wait_seconds(self._arrivals.waiting, time.perf_counter())

    def step(self) -> None:
        """Run the next Batch and report it; a segment that fails closes its own Session only."""
        started = time.perf_counter()
        batch, arrived = self._arrivals.next_batch(partial(self._most_decodes, started))
        self._run(batch, arrived)
        if all(waiting.tokens == 1 for waiting in batch):
            self.groups.passed(batch[0].lane, time.perf_counter() - started)

    def _most_decodes(self, now: float, lane: Lane) -> int:
        return self.groups.width(lane, now) if lane.begins_model else BATCH_TOKENS

    def _run(self, batch: Sequence[Waiting], arrived: Sequence[Arrived]) -> None:
        started, cpu_started = time.perf_counter(), time.process_time()
        try:
            flat = self._lay_out(batch, arrived)
            shard = self._shards[flat.lane.shard]
            output = shard.run(flat.lane.shard_range, flat.rows, flat.segments, flat.sampled)
        except Exception as error:  # noqa: BLE001 - a model's own code raises anything
            self._fail_apart(batch, arrived, f"{type(error).__name__}: {error}")
            return
        results, payload = self._results(batch, arrived, flat, output)
        self._send(
            Stepped(
                results=results,
                cpu_seconds=time.process_time() - cpu_started,
                wall_seconds=time.perf_counter() - started,
                was_compiled=shard.ran_compiled,
            ),
            payload,
        )

    def _fail_apart(
        self, batch: Sequence[Waiting], arrived: Sequence[Arrived], reason: str
    ) -> None:
        if len(batch) == 1:
            self._fail(batch[0].session, reason)
            return
        # Run alone, only the Sessions that are at fault fail again: a pass repeats its writes.
        for waiting, arrival in zip(batch, arrived, strict=True):
            self._run((waiting,), (arrival,))

    def _lay_out(self, batch: Sequence[Waiting], arrived: Sequence[Arrived]) -> _Flat:
        lane = batch[0].lane
        flat = _Flat(lane, self._rows(lane, arrived))
        row = 0
        for command, _ in arrived:
            kv = self._sessions[command.session].kv
            flat.segments.append(FlatSegment(kv, row, command.tokens, command.start))
            row += command.tokens
            if command.draws:
                flat.sampled.append(row - 1)
        return flat

    def _rows(self, lane: Lane, arrived: Sequence[Arrived]) -> torch.Tensor:
        shard = self._shards[lane.shard]
        if lane.begins_model:
            ids = [token_id for command, _ in arrived for token_id in command.token_ids or ()]
            # On a CUDA device an id beyond the vocabulary would end the whole process.
            if not 0 <= min(ids) <= max(ids) < shard.vocabulary_size:
                raise ValueError("a token id is not in the vocabulary")
            return torch.tensor(ids, device=self._device)
        # A bytearray, since torch refuses to share memory that it may not write.
        raw = bytearray().join(payload for _, payload in arrived)
        return self._staging.put(raw, shard.dtype).reshape(-1, shard.hidden_size)

    def _results(
        self,
        batch: Sequence[Waiting],
        arrived: Sequence[Arrived],
        flat: _Flat,
        output: torch.Tensor,
    ) -> tuple[tuple[StepResult, ...], bytes]:
        if self._shards[flat.lane.shard].layer_count == flat.lane.shard_range.end:
            return self._tokens(arrived, output), b""
        hidden = output.contiguous().cpu()
        row_bytes = hidden.shape[1] * hidden.element_size()
        results = tuple(
            _result(command, waiting.tokens * row_bytes, None)
            for waiting, (command, _) in zip(batch, arrived, strict=True)
        )
        return results, hidden.view(torch.uint8).numpy().tobytes()

    def _tokens(self, arrived: Sequence[Arrived], logits: torch.Tensor) -> tuple[StepResult, ...]:
        asked = [(self._sessions[c.session].drawing, c) for c, _ in arrived if c.draws]
        wanted = [Wanted(drawing, c.epoch, c.start + c.tokens) for drawing, c in asked]
        drawn = iter(draw_rows(wanted, logits))
        results: list[StepResult] = []
        for command, _ in arrived:
            token = next(drawn) if command.draws else None
            if isinstance(token, Exception):
                self._fail(command.session, token)
            else:
                results.append(_result(command, 0, token))
        return tuple(results)

    def _open(self, command: OpenSession) -> None:
        lane = Lane(command.shard, ShardRange(command.start, command.end))
        kv = SessionKv(command.session, self._pool(command.shard))
        self._sessions[command.session] = _Session(lane, kv)
        self._reserve(command.session, command.positions)

    def _reserve(self, session: int, positions: int) -> None:
        held = self._sessions[session]
        try:
            held.kv.reserve(positions, held.lane.shard_range.layers)
        except ValueError as error:
            self._fail(session, str(error))

    def _arm(self, command: ArmSession) -> None:
        session = self._sessions[command.session]
        try:
            shard = self._shards[session.lane.shard]
            make = partial(self._make_mask, shard)
            session.drawing = Drawing(command, shard.vocabulary_size, make)
        except Exception as error:  # noqa: BLE001 - a grammar's own code raises anything
            self._fail(command.session, error)

    def _pool(self, shard: int) -> BlockPool:
        if shard not in self._pools:
            size, scratch = block_positions(self._device), scratch_blocks(self._device)
            self._pools[shard] = BlockPool(size, scratch_blocks=scratch)
        return self._pools[shard]

    def _close(self, session: int) -> None:
        closed = self._sessions.pop(session, None)
        self.groups.forget(session)
        if closed is not None:
            closed.kv.release()
        self._arrivals.forget(session)

    def _fail(self, session: int, reason: str | Exception) -> None:
        self._close(session)
        self._send(SessionFailed(session, str(reason), fault_code(reason)), b"")


def _result(command: RunSegment, hidden_bytes: int, token: Drawn | None) -> StepResult:
    return StepResult(
        session=command.session,
        epoch=command.epoch,
        start=command.start,
        tokens=command.tokens,
        flags=command.flags,
        hidden_bytes=hidden_bytes,
        token_id=token.token_id if token else None,
        last_hop=command.last_hop,
        logprobs=token.logprobs if token else None,
    )
