"""Shards as their Workers last reported them: one row each, replaced as a whole."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import ShardReport, ShardState
from meshnet_tracker.store.holdings import tidy_reports
from meshnet_tracker.store.schema import worker_shards

_FIELDS = (
    "model",
    "quantization",
    "start_layer",
    "end_layer",
    "state",
    "is_tail",
    "bytes_done",
    "bytes_total",
)


async def of_worker(connection: AsyncConnection, worker_id: WorkerId) -> tuple[ShardReport, ...]:
    """Read the Shards of one Worker, as it reported them."""
    query = select(worker_shards).where(worker_shards.c.worker_id == worker_id)
    rows = await connection.execute(query.order_by(worker_shards.c.position))
    return tuple(_report(row) for row in rows.mappings())


async def by_worker(connection: AsyncConnection) -> dict[WorkerId, tuple[ShardReport, ...]]:
    """Read the Shards of all Workers at once."""
    query = select(worker_shards).order_by(worker_shards.c.worker_id, worker_shards.c.position)
    found: dict[WorkerId, list[ShardReport]] = {}
    for row in (await connection.execute(query)).mappings():
        found.setdefault(row["worker_id"], []).append(_report(row))
    return {worker_id: tuple(reports) for worker_id, reports in found.items()}


async def replace(
    connection: AsyncConnection, worker_id: WorkerId, reports: Iterable[ShardReport]
) -> bool:
    """Store a Worker's Shards; answers whether their ranges or states are other than before."""
    wanted = tidy_reports(tuple(reports))
    known = await of_worker(connection, worker_id)
    if wanted == known:
        return False
    await connection.execute(delete(worker_shards).where(worker_shards.c.worker_id == worker_id))
    rows = [
        {field: getattr(report, field) for field in _FIELDS}
        | {"worker_id": worker_id, "position": position}
        for position, report in enumerate(wanted)
    ]
    if rows:
        await connection.execute(insert(worker_shards), rows)
    return {_place(report) for report in wanted} != {_place(report) for report in known}


def _place(report: ShardReport) -> tuple[object, ...]:
    return report.model, report.quantization, report.shard_range, report.state


def _report(row: Mapping[Any, Any]) -> ShardReport:
    fields = {field: row[field] for field in _FIELDS}
    return ShardReport(**fields | {"state": ShardState(row["state"])})
