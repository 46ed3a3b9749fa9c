"""Workers as people see them: whole records, the lost ones included, a page at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import Capabilities, ShardReport
from meshnet_tracker.records import OpenDirective, WorkerRecord
from meshnet_tracker.store import directives, shards
from meshnet_tracker.store.schema import workers
from meshnet_tracker.store.workers import CAPABILITIES


async def load_all(connection: AsyncConnection) -> tuple[WorkerRecord, ...]:
    """Read every Worker, by id."""
    reports = await shards.by_worker(connection)
    orders = await directives.open_by_worker(connection)
    rows = await connection.execute(select(workers).where(~workers.c.gone).order_by(workers.c.id))
    return _records(rows.mappings().all(), reports, orders)


async def load_page(
    connection: AsyncConnection, after: WorkerId, limit: int
) -> tuple[WorkerRecord, ...]:
    """Read the next Workers after one, by id."""
    query = select(workers).where(workers.c.id > after, ~workers.c.gone).order_by(workers.c.id)
    rows = (await connection.execute(query.limit(limit))).mappings().all()
    names = [row["id"] for row in rows]
    reports = await shards.by_worker(connection, names)
    return _records(rows, reports, await directives.open_among(connection, names))


def _records(
    rows: Sequence[Mapping[Any, Any]],
    reports: Mapping[WorkerId, tuple[ShardReport, ...]],
    orders: Mapping[WorkerId, Sequence[OpenDirective]],
) -> tuple[WorkerRecord, ...]:
    return tuple(
        WorkerRecord(
            worker_id=row["id"],
            url=row["url"],
            version=row["version"],
            fingerprint=row["fingerprint"],
            capabilities=_capabilities(row),
            registered_at=row["registered_at"],
            seen_at=row["seen_at"],
            is_heard=row["heard"],
            is_lost=row["lost_at"] is not None,
            is_leaving=row["leaving"],
            sessions=row["sessions"],
            kv_bytes_free=row["kv_bytes_free"],
            speeds_of=row["speeds_of"],
            failures=row["failures"],
            cooling_until=row["cooling_until"],
            shards=reports.get(row["id"], ()),
            directives=tuple(orders.get(row["id"], ())),
        )
        for row in rows
    )


def _capabilities(row: Mapping[Any, Any]) -> Capabilities:
    fields = {field: row[field] for field in CAPABILITIES}
    return Capabilities(**fields, quantizations=tuple(row["quantizations"]))
