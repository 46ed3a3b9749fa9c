"""Workers: who has joined with which token, when each was last seen, and who is lost."""

import hmac
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import (
    Capabilities,
    DirectiveState,
    Heartbeat,
    RegisterWorker,
)
from meshnet_tracker.records import WorkerPlace, WorkerRecord
from meshnet_tracker.store import cooling, directives, shards
from meshnet_tracker.store.errors import BadTokenError
from meshnet_tracker.store.schema import workers

FORGET_LOST_AFTER_SECONDS = 86_400.0

_CAPABILITIES = (
    "vram_bytes",
    "benchmark_tokens_per_sec",
    "benchmark_model",
    "device",
    "starts_at_zero",
    "decode_tokens_per_sec_per_layer",
    "prefill_tokens_per_sec_per_layer",
    "memory_bytes_per_sec",
    "link_bytes_per_sec",
)


async def register(
    connection: AsyncConnection, registration: RegisterWorker, token_sha256: str, now: float
) -> None:
    """Take in a Worker, or replace its old registration: the newest wins.

    The token and all Shards of the old one are void. What it has failed at is remembered, so that
    a Worker that dies of every load does not get the next one at once.
    """
    worker_id = WorkerId(registration.worker_id)
    values = _registration_values(registration, token_sha256, now)
    known = workers.c.id == worker_id
    changed = await connection.execute(update(workers).where(known).values(**values))
    if not changed.rowcount:
        fresh = {"id": worker_id, "failures": 0, "cooling_until": 0.0, **values}
        await connection.execute(insert(workers).values(**fresh))
        return
    orders = await directives.open_of_worker(connection, worker_id)
    if any(order.state is DirectiveState.LOADING for order in orders):
        await cooling.count_failure(connection, worker_id, now)
    await _clear(connection, worker_id, "The Worker registered again.", now)


async def authenticate(connection: AsyncConnection, worker_id: WorkerId, token_sha256: str) -> None:
    """Raise BadTokenError unless the Worker is registered with this token."""
    query = select(workers.c.token_sha256).where(workers.c.id == worker_id)
    known: str | None = (await connection.execute(query)).scalar()
    if known is None or not hmac.compare_digest(known, token_sha256):
        raise BadTokenError("Register again with POST /v1/workers.")


async def record_heartbeat(
    connection: AsyncConnection, worker_id: WorkerId, heartbeat: Heartbeat, now: float
) -> bool:
    """Note that a Worker lives, what it serves and its load; answers whether that is news.

    News is the first heartbeat after joining or being lost, Shards that are others than before, and
    that it is about to leave, which ends its directives.
    """
    own = workers.c.id == worker_id
    is_live = workers.c.heard & workers.c.lost_at.is_(None)
    query = select(is_live, workers.c.leaving).where(own)
    was_live, was_leaving = (await connection.execute(query)).one_or_none() or (False, False)
    values = {
        "seen_at": now,
        "heard": True,
        "lost_at": None,
        "sessions": heartbeat.sessions,
        "kv_bytes_free": heartbeat.kv_bytes_free,
        "directive_epoch": heartbeat.directive_epoch,
        "leaving": heartbeat.leaving,
        **_speeds(heartbeat),
    }
    await connection.execute(update(workers).where(own).values(**values))
    lifted = await directives.observe_epoch(connection, worker_id, heartbeat.directive_epoch)
    moved = await shards.replace(connection, worker_id, heartbeat.shards)
    if heartbeat.leaving:
        await directives.abandon_all(connection, worker_id, "The Worker is leaving.", now)
    return moved or lifted or not was_live or heartbeat.leaving != was_leaving


async def mark_lost(
    connection: AsyncConnection, seen_before: float, now: float
) -> tuple[WorkerId, ...]:
    """Mark Workers not seen since then as lost: their Shards no longer count.

    One that comes back is taken in again by its next heartbeat.
    """
    is_late = workers.c.lost_at.is_(None) & (workers.c.seen_at < seen_before)
    query = select(workers.c.id).where(is_late).order_by(workers.c.id)
    lost = tuple((await connection.execute(query)).scalars())
    for worker_id in lost:
        await _lose(connection, worker_id, now)
    long_ago = workers.c.lost_at < now - FORGET_LOST_AFTER_SECONDS
    await connection.execute(delete(workers).where(long_ago))
    return lost


async def places(
    connection: AsyncConnection, worker_ids: Collection[WorkerId]
) -> tuple[WorkerPlace, ...]:
    """Say where those of these Workers that are not lost can be reached."""
    query = select(workers.c.id, workers.c.url, workers.c.registered_at)
    known = workers.c.id.in_(worker_ids) & workers.c.lost_at.is_(None)
    rows = await connection.execute(query.where(known).order_by(workers.c.id))
    return tuple(WorkerPlace(*row) for row in rows)


async def mark_unreachable(connection: AsyncConnection, place: WorkerPlace, now: float) -> bool:
    """Mark a Worker as lost whom nobody could reach there; answers whether it was not yet.

    One that has registered again since may be somewhere else, and well.
    """
    query = (
        select(func.count())
        .select_from(workers)
        .where(workers.c.id == place.worker_id, workers.c.lost_at.is_(None))
        .where(workers.c.url == place.url, workers.c.registered_at == place.registered_at)
    )
    if not (await connection.execute(query)).scalar_one():
        return False
    await _lose(connection, place.worker_id, now)
    return True


async def any_late(connection: AsyncConnection, seen_before: float) -> bool:
    """Tell cheaply, without a writer's lock, whether `mark_lost` has something to do."""
    is_late = workers.c.lost_at.is_(None) & (workers.c.seen_at < seen_before)
    query = select(func.count()).select_from(workers).where(is_late)
    return bool((await connection.execute(query)).scalar_one())


async def remove(connection: AsyncConnection, worker_id: WorkerId) -> None:
    """Delete a Worker that said goodbye, with its Shards and directives."""
    await connection.execute(delete(workers).where(workers.c.id == worker_id))


async def load_all(connection: AsyncConnection) -> tuple[WorkerRecord, ...]:
    """Read every Worker, the lost ones included, by id."""
    reports = await shards.by_worker(connection)
    orders = await directives.open_by_worker(connection)
    rows = (await connection.execute(select(workers).order_by(workers.c.id))).mappings()
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


async def _lose(connection: AsyncConnection, worker_id: WorkerId, now: float) -> None:
    changed = update(workers).where(workers.c.id == worker_id)
    await connection.execute(changed.values(lost_at=now, sessions=0))
    await _clear(connection, worker_id, "The Worker was lost.", now)


async def _clear(connection: AsyncConnection, worker_id: WorkerId, why: str, now: float) -> None:
    await shards.replace(connection, worker_id, ())
    await directives.abandon_all(connection, worker_id, why, now)


def _registration_values(
    registration: RegisterWorker, token_sha256: str, now: float
) -> dict[str, Any]:
    capabilities = {field: getattr(registration.capabilities, field) for field in _CAPABILITIES}
    return {
        **capabilities,
        "speeds_of": registration.capabilities.benchmark_model,
        "url": registration.url,
        "version": registration.version,
        "fingerprint": registration.fingerprint,
        "token_sha256": token_sha256,
        "quantizations": list(registration.capabilities.quantizations),
        "registered_at": now,
        "seen_at": now,
        "heard": False,
        "lost_at": None,
        "leaving": False,
        "sessions": 0,
        "kv_bytes_free": 0,
        "directive_epoch": 0,
    }


def _speeds(heartbeat: Heartbeat) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    if heartbeat.link_bytes_per_sec:
        measured["link_bytes_per_sec"] = heartbeat.link_bytes_per_sec
    if not heartbeat.speeds_of:
        return measured
    return measured | {
        "decode_tokens_per_sec_per_layer": heartbeat.decode_tokens_per_sec_per_layer,
        "prefill_tokens_per_sec_per_layer": heartbeat.prefill_tokens_per_sec_per_layer,
        "speeds_of": heartbeat.speeds_of,
    }


def _capabilities(row: Mapping[Any, Any]) -> Capabilities:
    fields = {field: row[field] for field in _CAPABILITIES}
    return Capabilities(**fields, quantizations=tuple(row["quantizations"]))
