"""Workers: who has joined with which token, who has left, and who is lost; many at once."""

import hmac
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Select, Update, bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveState, RegisterWorker
from meshnet_tracker.records import Joining, WorkerPlace
from meshnet_tracker.store import cooling, directives, shards
from meshnet_tracker.store.changes import touch
from meshnet_tracker.store.schema import workers
from meshnet_tracker.store.sets import NAMES, among, among_names, listed

FORGET_LOST_AFTER_SECONDS = 86_400.0
FORGET_GONE_AFTER_SECONDS = 180.0
"""Until then a Tracker that reads changes only still sees a Worker go."""

CAPABILITIES = (
    "vram_bytes",
    "benchmark_tokens_per_sec",
    "benchmark_model",
    "device",
    "starts_at_zero",
    "decode_tokens_per_sec_per_layer",
    "prefill_tokens_per_sec_per_layer",
    "memory_bytes_per_sec",
    "link_bytes_per_sec",
    "region",
)


_ADDING = insert(workers)


async def register(connection: AsyncConnection, joining: Sequence[Joining], now: float) -> None:
    """Take in Workers, or replace their old registrations: the newest wins.

    The token and all Shards of the old one are void. What it has failed at is remembered, so that
    a Worker that dies of every load does not get the next one at once.
    """
    newest = {WorkerId(entry.registration.worker_id): entry for entry in joining}
    own = {NAMES: listed(connection, newest)}
    found = await connection.execute(_gone_of(connection.dialect.name), own)
    is_gone = {row.id: row.gone for row in found}
    rows = [
        _values(entry, now) | {"own_id": worker_id}
        for worker_id, entry in newest.items()
        if worker_id in is_gone
    ]
    if rows:
        names = [name for name in rows[0] if name != "own_id"]
        changed = update(workers).where(workers.c.id == bindparam("own_id"))
        values: Any = {name: bindparam(name) for name in names}
        await connection.execute(changed.values(values), rows)
        await _void(connection, is_gone, now)
    fresh = {"failures": 0, "cooling_until": 0.0}
    added = [
        {"id": worker_id, **fresh, **_values(entry, now)}
        for worker_id, entry in newest.items()
        if worker_id not in is_gone
    ]
    if added:
        await connection.execute(_ADDING, added)
    await touch(connection, newest)


@cache
def _gone_of(dialect: str) -> Select[Any]:
    return select(workers.c.id, workers.c.gone).where(among_names(dialect, workers.c.id))


async def strangers(
    connection: AsyncConnection, tokens: Collection[tuple[WorkerId, str]]
) -> frozenset[tuple[WorkerId, str]]:
    """Name those that are not registered with this token."""
    own = {NAMES: listed(connection, {worker_id for worker_id, _ in tokens})}
    rows = await connection.execute(_tokens_of(connection.dialect.name), own)
    known: dict[str, str] = {row[0]: row[1] for row in rows}
    return frozenset(
        (worker_id, token)
        for worker_id, token in tokens
        if not hmac.compare_digest(known.get(worker_id, ""), token)
    )


@cache
def _tokens_of(dialect: str) -> Select[Any]:
    own = among_names(dialect, workers.c.id)
    return select(workers.c.id, workers.c.token_sha256).where(own, ~workers.c.gone)


async def lose(connection: AsyncConnection, worker_ids: Collection[WorkerId], now: float) -> None:
    """Mark Workers as lost."""
    if not worker_ids:
        return
    changed = update(workers).where(among(connection, workers.c.id, worker_ids))
    await connection.execute(changed.values(lost_at=now, sessions=0, queued=0))
    await _clear(connection, worker_ids, "The Worker was lost.", now)
    await touch(connection, worker_ids)


async def sweep(connection: AsyncConnection, now: float) -> None:
    """Forget who was lost long ago, and who left a while ago."""
    long_ago = workers.c.lost_at < now - FORGET_LOST_AFTER_SECONDS
    left = workers.c.gone & (workers.c.lost_at < now - FORGET_GONE_AFTER_SECONDS)
    await connection.execute(delete(workers).where(long_ago | left))


async def places(
    connection: AsyncConnection, worker_ids: Collection[WorkerId]
) -> tuple[WorkerPlace, ...]:
    """Say where those of these Workers that are not lost can be reached."""
    query = select(workers.c.id, workers.c.url, workers.c.registered_at)
    known = among(connection, workers.c.id, worker_ids) & workers.c.lost_at.is_(None)
    rows = await connection.execute(query.where(known).order_by(workers.c.id))
    return tuple(WorkerPlace(*row) for row in rows)


async def mark_unreachable(connection: AsyncConnection, place: WorkerPlace, now: float) -> bool:
    """Mark a Worker as lost whom nobody could reach there; answers whether it was not yet.

    One that has registered again since may be somewhere else, and well.
    """
    if place not in await places(connection, (place.worker_id,)):
        return False
    await lose(connection, (place.worker_id,), now)
    return True


async def leave(connection: AsyncConnection, worker_ids: Collection[WorkerId], now: float) -> None:
    """Take Workers off the map that said goodbye; the rows stay until all Trackers saw them go."""
    going = {NAMES: listed(connection, worker_ids), "now": now}
    await connection.execute(_leaving(connection.dialect.name), going)
    await _clear(connection, worker_ids, "The Worker left.", now)
    await touch(connection, worker_ids)


@cache
def _leaving(dialect: str) -> Update:
    own = among_names(dialect, workers.c.id)
    going = update(workers).where(own, ~workers.c.gone)
    return going.values(gone=True, lost_at=bindparam("now"), sessions=0, queued=0)


async def _void(connection: AsyncConnection, is_gone: Mapping[WorkerId, bool], now: float) -> None:
    """End what an earlier registration held and was told."""
    # Who said goodbye begins with a clean slate.
    await cooling.forgive(connection, [one for one, gone in is_gone.items() if gone])
    opened = await directives.open_among(connection, is_gone)
    died = [
        worker_id
        for worker_id, orders in opened.items()
        if any(order.state is DirectiveState.LOADING for order in orders)
    ]
    await cooling.count_failures(connection, died, now)
    await _clear(connection, is_gone, "The Worker registered again.", now)


async def _clear(
    connection: AsyncConnection, worker_ids: Collection[WorkerId], why: str, now: float
) -> None:
    await shards.replace(connection, dict.fromkeys(worker_ids, ()))
    await directives.abandon_all(connection, worker_ids, why, now)


def _values(entry: Joining, now: float) -> dict[str, Any]:
    registration: RegisterWorker = entry.registration
    offered = registration.capabilities
    return {
        **{field: getattr(offered, field) for field in CAPABILITIES},
        "speeds_of": offered.benchmark_model,
        "url": registration.url,
        "version": registration.version,
        "fingerprint": registration.fingerprint,
        "token_sha256": entry.token_sha256,
        "quantizations": list(offered.quantizations),
        "registered_at": now,
        "seen_at": now,
        "heard": False,
        "lost_at": None,
        "gone": False,
        "leaving": False,
        "sessions": 0,
        "queued": 0,
        "kv_bytes_free": 0,
        "download_bytes_per_sec": 0.0,
        "round_trips": [],
        "directive_epoch": 0,
    }
