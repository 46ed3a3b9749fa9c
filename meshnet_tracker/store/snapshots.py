"""Builds the Mesh Snapshot, the only input of planner and router, inside one transaction."""

from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.planning.snapshot import Holding, MeshSnapshot, WorkerView
from meshnet_tracker.records import LoadedSnapshot, WorkerRecord
from meshnet_tracker.store import counters, pins, presets, workers
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.holdings import held_shards

LEAST_SPEED = 1e-3
"""Layer-tokens per second of a Worker that measured nothing; the planner divides by it."""


async def load(connection: AsyncConnection) -> LoadedSnapshot:
    """Read presets and live Workers, both by name, and the epoch that belongs to them.

    A Worker is in it from its first heartbeat on: one that registers again may hold a great deal,
    and would be told to load it once more.
    """
    epoch = await counters.read(connection, Counter.DIRECTIVE_EPOCH)
    records = await presets.load_all(connection)
    known = await workers.load_all(connection)
    drained = await pins.load_drained(connection)
    live = [record for record in known if record.is_heard and not record.is_lost]
    snapshot = MeshSnapshot(
        presets=tuple(record.preset for record in records),
        workers=tuple(
            replace(_view(record), retiring=record.worker_id in drained) for record in live
        ),
        pins=await pins.load_pins(connection),
    )
    return LoadedSnapshot(snapshot, epoch)


def _view(record: WorkerRecord) -> WorkerView:
    held = held_shards(record.shards, [order.directive for order in record.directives])
    if record.is_leaving:
        # All that it holds goes away, as if it were told to drop it.
        held = tuple(replace(shard, holding=Holding.DRAINING) for shard in held)
    return WorkerView(
        worker_id=record.worker_id,
        url=record.url,
        vram_bytes=record.capabilities.vram_bytes,
        speed=max(record.capabilities.benchmark_tokens_per_sec, LEAST_SPEED),
        quantizations=frozenset(record.capabilities.quantizations),
        held=held,
        starts_at_zero=record.capabilities.starts_at_zero,
        sessions=record.sessions,
        fingerprint=record.fingerprint,
        cooling_until=record.cooling_until,
        leaving=record.is_leaving,
    )
