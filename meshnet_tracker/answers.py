"""Answers that no Worker reads: the list of Workers for people, and the list of Head Workers."""

from collections.abc import Iterable

import msgspec

from meshnet_common.protocol.messages import ShardReport
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.models import ServedModel
from meshnet_tracker.planning.snapshot import Holding, MeshSnapshot, WorkerView
from meshnet_tracker.records import OpenDirective, WorkerRecord


class DirectiveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A Rebalance Directive under way; bytes say how far a load has come."""

    kind: str
    model: str
    quantization: str
    start_layer: int
    end_layer: int
    reason: str
    state: str
    deadline: float
    bytes_done: int
    bytes_total: int


class WorkerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One Worker as people see it; times are in seconds, `cooling_seconds` until it may load."""

    worker_id: str
    url: str
    state: str
    version: str
    device: str
    region: str
    vram_bytes: int
    quantizations: tuple[str, ...]
    benchmark_tokens_per_sec: float
    decode_tokens_per_sec_per_layer: float
    prefill_tokens_per_sec_per_layer: float
    speeds_of: str
    memory_bytes_per_sec: float
    link_bytes_per_sec: float
    seconds_since_heartbeat: float
    sessions: int
    kv_bytes_free: int
    failures: int
    cooling_seconds: float
    shards: tuple[ShardReport, ...]
    directives: tuple[DirectiveSummary, ...]


class WorkerSummaries(msgspec.Struct, frozen=True):
    """Answer of `GET /v1/workers`."""

    workers: tuple[WorkerSummary, ...]


class HeadWorkers(msgspec.Struct, frozen=True):
    """Answer of `GET /v1/head-workers/{model}`."""

    endpoints: tuple[str, ...]


def summarize_workers(records: Iterable[WorkerRecord], now: float) -> WorkerSummaries:
    """Describe all Workers, the lost ones included."""
    return WorkerSummaries(tuple(_summary(record, now) for record in records))


def head_workers(workers: Iterable[WorkerView], model: ServedModel) -> HeadWorkers:
    """List the Workers that have Layer 0 of a model ready."""
    first = ShardRange(0, 1)
    return HeadWorkers(
        tuple(
            worker.url
            for worker in workers
            if any(
                shard.variant == model.key
                and shard.holding is Holding.READY
                and shard.shard_range.contains(first)
                for shard in worker.held
            )
        )
    )


def admissible_tokens(snapshot: MeshSnapshot, model: ServedModel) -> int:
    """The longest prompt and answer for which the memory lent now has room, once others are done.

    Of each Layer the roomiest Worker counts, with all that it has besides its weights; what cannot
    be admitted after all is refused with the exact figures.
    """
    context = model.preset.context_tokens
    token_bytes = model.variant.kv_bytes_per_token_per_layer
    if model.preset.is_encoder or not token_bytes:
        return context
    variants = dict(snapshot.variants())
    most = [0] * model.layer_count
    for worker in snapshot.workers:
        runs = [
            shard.shard_range
            for shard in worker.held
            if shard.variant == model.key and shard.holding is Holding.READY
        ]
        if not runs:
            continue
        own = (shard for shard in worker.held if shard.variant in variants)
        weights = sum(variants[shard.variant].range_bytes(shard.shard_range) for shard in own)
        tokens = (worker.vram_bytes - weights) // (token_bytes * sum(map(len, runs)))
        for layer in (layer for run in runs for layer in range(run.start, run.end)):
            most[layer] = max(most[layer], tokens)
    return max(0, min(context, *most))


def _summary(record: WorkerRecord, now: float) -> WorkerSummary:
    return WorkerSummary(
        worker_id=record.worker_id,
        url=record.url,
        state=_state(record),
        version=record.version,
        device=record.capabilities.device,
        region=record.capabilities.region,
        vram_bytes=record.capabilities.vram_bytes,
        quantizations=record.capabilities.quantizations,
        benchmark_tokens_per_sec=record.capabilities.benchmark_tokens_per_sec,
        decode_tokens_per_sec_per_layer=record.capabilities.decode_tokens_per_sec_per_layer,
        prefill_tokens_per_sec_per_layer=record.capabilities.prefill_tokens_per_sec_per_layer,
        speeds_of=record.speeds_of,
        memory_bytes_per_sec=record.capabilities.memory_bytes_per_sec,
        link_bytes_per_sec=record.capabilities.link_bytes_per_sec,
        seconds_since_heartbeat=round(max(0.0, now - record.seen_at), 3),
        sessions=record.sessions,
        kv_bytes_free=record.kv_bytes_free,
        failures=record.failures,
        cooling_seconds=round(max(0.0, record.cooling_until - now), 3),
        shards=record.shards,
        directives=tuple(_directive(order) for order in record.directives),
    )


def _state(record: WorkerRecord) -> str:
    if record.is_lost:
        return "lost"
    if record.is_leaving:
        return "leaving"
    return "live" if record.is_heard else "joining"


def _directive(order: OpenDirective) -> DirectiveSummary:
    wire = order.directive
    return DirectiveSummary(
        kind=wire.kind,
        model=wire.model,
        quantization=wire.quantization,
        start_layer=wire.start_layer,
        end_layer=wire.end_layer,
        reason=wire.reason,
        state=order.state,
        deadline=wire.deadline,
        bytes_done=order.bytes_done,
        bytes_total=order.bytes_total,
    )
