"""Shards as their Workers last reported them: one row each, a Worker's replaced as a whole."""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Delete, Select, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import ShardReport, ShardState
from meshnet_tracker.store.holdings import places, tidy_reports
from meshnet_tracker.store.schema import worker_shards
from meshnet_tracker.store.sets import NAMES, among_names, listed

_FIELDS = (
    "model",
    "quantization",
    "start_layer",
    "end_layer",
    "state",
    "is_tail",
    "bytes_done",
    "bytes_total",
    "digest",
)

_ALL = select(worker_shards).order_by(worker_shards.c.worker_id, worker_shards.c.position)
_ADDING = insert(worker_shards)


async def by_worker(
    connection: AsyncConnection, worker_ids: Collection[WorkerId] | None = None
) -> dict[WorkerId, tuple[ShardReport, ...]]:
    """Read the Shards of these Workers, or of all of them, at once."""
    dialect = connection.dialect.name
    if worker_ids is None:
        rows = await connection.execute(_ALL)
    else:
        rows = await connection.execute(_of(dialect), {NAMES: listed(connection, worker_ids)})
    found: dict[WorkerId, list[ShardReport]] = {}
    for row in rows.mappings():
        found.setdefault(row["worker_id"], []).append(_report(row))
    return {worker_id: tuple(reports) for worker_id, reports in found.items()}


async def replace(
    connection: AsyncConnection, reported: Mapping[WorkerId, Iterable[ShardReport]]
) -> set[WorkerId]:
    """Store the Shards of Workers; answers whose ranges or states are other than before.

    Where nothing has changed, nothing is written.
    """
    known = await by_worker(connection, reported)
    wanted = {name: tidy_reports(tuple(reports)) for name, reports in reported.items()}
    others = {name: own for name, own in wanted.items() if own != known.get(name, ())}
    await put(connection, others)
    return {name for name in others if places(others[name]) != places(known.get(name, ()))}


async def put(
    connection: AsyncConnection, others: Mapping[WorkerId, tuple[ShardReport, ...]]
) -> None:
    """Store tidy reports of Workers, whatever there is of them."""
    if not others:
        return
    old = {NAMES: listed(connection, sorted(others))}
    await connection.execute(_forgetting(connection.dialect.name), old)
    rows = [
        {field: getattr(report, field) for field in _FIELDS}
        | {"worker_id": worker_id, "position": position}
        for worker_id in sorted(others)
        for position, report in enumerate(others[worker_id])
    ]
    if rows:
        await connection.execute(_ADDING, rows)


@cache
def _of(dialect: str) -> Select[Any]:
    return _ALL.where(among_names(dialect, worker_shards.c.worker_id))


@cache
def _forgetting(dialect: str) -> Delete:
    return delete(worker_shards).where(among_names(dialect, worker_shards.c.worker_id))


def _report(row: Mapping[Any, Any]) -> ShardReport:
    fields = {field: row[field] for field in _FIELDS}
    return ShardReport(**fields | {"state": ShardState(row["state"])})
