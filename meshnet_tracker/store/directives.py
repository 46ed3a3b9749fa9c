"""Rebalance Directives as rows: issued once, read by their Worker, closed when they run out.

The epoch grows with every directive and never repeats. What a pass decided is issued only if no
other pass has issued anything since its snapshot, and only by the Tracker whose term it is. That is
told by the number of plans issued and not by the epoch, which Workers can raise.
"""

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import (
    Directive,
    DirectiveKind,
    DirectiveState,
)
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import RebalanceDirective, VariantKey
from meshnet_tracker.records import OpenDirective, Term
from meshnet_tracker.store import cooling, counters, holdings, leadership, presets, shards
from meshnet_tracker.store.cooling import MAX_COOLING_SECONDS
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.errors import StaleSnapshotError
from meshnet_tracker.store.legality import still_legal
from meshnet_tracker.store.revisions import Revisions
from meshnet_tracker.store.schema import directives, worker_shards, workers
from meshnet_tracker.store.sets import NAMES, among, among_names, listed

OPEN_STATES = (DirectiveState.ISSUED, DirectiveState.ACCEPTED, DirectiveState.LOADING)
MAX_EPOCH_JUMP = 1_000_000
"""A Worker that claims to have seen more than this above our epoch is not believed."""

KEEP_CLOSED_SECONDS = 7 * 86_400.0
MOST_FORGOTTEN_AT_ONCE = 5_000
"""The rest goes the next time, so that no statement takes long."""

_Order = tuple[WorkerId, DirectiveKind, VariantKey, ShardRange]

_OPEN = select(directives).where(directives.c.state.in_(OPEN_STATES)).order_by(directives.c.epoch)

_HOLDERS = select(worker_shards.c.worker_id).where(
    worker_shards.c.model == bindparam("model_"),
    worker_shards.c.quantization == bindparam("quantization_"),
    worker_shards.c.start_layer < bindparam("end"),
    worker_shards.c.end_layer > bindparam("first"),
)


async def open_by_worker(connection: AsyncConnection) -> dict[WorkerId, list[OpenDirective]]:
    """Read all directives that are not finished, each Worker's by rising epoch."""
    return _by_worker((await connection.execute(_OPEN)).mappings())


async def open_of_worker(
    connection: AsyncConnection, worker_id: WorkerId, above_epoch: int = -1
) -> tuple[OpenDirective, ...]:
    """Read a Worker's open directives above an epoch, by epoch."""
    orders = (await open_among(connection, (worker_id,))).get(worker_id, ())
    return tuple(order for order in orders if order.directive.epoch > above_epoch)


async def open_among(
    connection: AsyncConnection, worker_ids: Collection[WorkerId]
) -> dict[WorkerId, list[OpenDirective]]:
    """Read the open directives of these Workers, each one's by rising epoch."""
    own = {NAMES: listed(connection, worker_ids)}
    rows = await connection.execute(_open_of(connection.dialect.name), own)
    return _by_worker(rows.mappings())


def _by_worker(rows: Iterable[Mapping[Any, Any]]) -> dict[WorkerId, list[OpenDirective]]:
    found: dict[WorkerId, list[OpenDirective]] = {}
    for row in rows:
        found.setdefault(row["worker_id"], []).append(_open_directive(row))
    return found


@cache
def _open_of(dialect: str) -> Any:
    return _OPEN.where(among_names(dialect, directives.c.worker_id))


async def issue(
    connection: AsyncConnection,
    planned: Sequence[RebalanceDirective],
    plans_seen: int,
    deadline_seconds: float,
    now: float,
    term: Term,
) -> tuple[RebalanceDirective, ...]:
    """Insert what is new and still legal; answers what was issued.

    Raises StaleTermError when another Tracker plans now, StaleSnapshotError when a plan was issued
    since this one was made. A directive that is already open is not issued twice.
    """
    await leadership.check(connection, term)
    plans = await counters.read(connection, Counter.ISSUED_PLANS)
    if plans != plans_seen:
        raise StaleSnapshotError(f"It was made after {plans_seen} plans, now there are {plans}.")
    accepted = await _still_legal(connection, planned, now)
    if not accepted:
        return ()
    await counters.advance(connection, Counter.ISSUED_PLANS)
    last = await counters.advance(connection, Counter.DIRECTIVE_EPOCH, len(accepted))
    rows = [
        _new_row(directive, last - len(accepted) + 1 + index, deadline_seconds, now)
        for index, directive in enumerate(accepted)
    ]
    await connection.execute(insert(directives), rows)
    return tuple(accepted)


async def issued_above(connection: AsyncConnection, epoch: int) -> tuple[int, tuple[WorkerId, ...]]:
    """Name the newest epoch and the Workers that got directives above the given one."""
    newest = await counters.read(connection, Counter.DIRECTIVE_EPOCH)
    if newest == epoch:
        return newest, ()
    query = select(directives.c.worker_id).where(directives.c.epoch > epoch).distinct()
    return newest, tuple((await connection.execute(query)).scalars())


async def any_expired(connection: AsyncConnection, now: float) -> bool:
    """Tell cheaply, without a writer's lock, whether `expire` has something to do."""
    query = select(func.count()).select_from(directives).where(_is_expired(now))
    return bool((await connection.execute(query)).scalar_one())


async def expire(connection: AsyncConnection, now: float) -> tuple[tuple[WorkerId, Directive], ...]:
    """Close the open directives whose deadline is over and let their Workers cool down."""
    rows = (await connection.execute(select(directives).where(_is_expired(now)))).mappings().all()
    for row in rows:
        await close(connection, row["id"], DirectiveState.EXPIRED, "Its deadline is over.", now)
        await cooling.count_failure(connection, row["worker_id"], now)
    return tuple((row["worker_id"], directive_of(row)) for row in rows)


async def close(
    connection: AsyncConnection, directive_id: str, state: DirectiveState, detail: str, now: float
) -> None:
    """Put a directive into a final state."""
    changed = update(directives).where(directives.c.id == directive_id)
    await connection.execute(changed.values(state=state, detail=detail, updated_at=now))


async def sweep(connection: AsyncConnection, now: float) -> None:
    """Forget directives that were closed long ago."""
    is_old = directives.c.updated_at < now - KEEP_CLOSED_SECONDS
    old = select(directives.c.id).where(is_old, directives.c.state.not_in(OPEN_STATES))
    some = old.limit(MOST_FORGOTTEN_AT_ONCE)
    await connection.execute(delete(directives).where(directives.c.id.in_(some)))


async def abandon_all(
    connection: AsyncConnection, worker_ids: Collection[WorkerId], detail: str, now: float
) -> None:
    """Fail all open directives of Workers that are lost or begin anew."""
    if not worker_ids:
        return
    ended = {NAMES: listed(connection, worker_ids), "ended_by": detail, "now": now}
    await connection.execute(_abandoning(connection.dialect.name), ended)


@cache
def _abandoning(dialect: str) -> Any:
    own = among_names(dialect, directives.c.worker_id)
    ended = update(directives).where(own, directives.c.state.in_(OPEN_STATES))
    return ended.values(
        state=DirectiveState.FAILED, detail=bindparam("ended_by"), updated_at=bindparam("now")
    )


async def observe_epoch(connection: AsyncConnection, worker_id: WorkerId, epoch: int) -> bool:
    """Continue above an epoch that a Worker has seen; answers whether it was news.

    After a restored backup a Worker knows epochs that the database has forgotten, and would not
    look at lower ones: what is open for it is lifted above them as well.
    """
    known = await counters.read(connection, Counter.DIRECTIVE_EPOCH)
    if not known < epoch <= known + MAX_EPOCH_JUMP:
        return False
    await counters.raise_to(connection, Counter.DIRECTIVE_EPOCH, epoch)
    for order in await open_of_worker(connection, worker_id):
        lifted = await counters.advance(connection, Counter.DIRECTIVE_EPOCH)
        changed = update(directives).where(directives.c.id == order.directive.id)
        await connection.execute(changed.values(epoch=lifted))
    return True


async def _still_legal(
    connection: AsyncConnection, planned: Sequence[RebalanceDirective], now: float
) -> list[RebalanceDirective]:
    concerned = await _concerned(connection, planned)
    reports = await shards.by_worker(connection, concerned)
    orders = await open_among(connection, concerned)
    opened = {name: [order.directive for order in own] for name, own in orders.items()}
    # Whoever leaves gets no directive, and nobody's DROP_SHARD may count on it.
    live = select(workers.c.id).where(
        among(connection, workers.c.id, concerned), workers.c.lost_at.is_(None), ~workers.c.leaving
    )
    revisions = Revisions.of([record.preset for record in await presets.load_all(connection)])
    held = {
        worker_id: revisions.marked(
            holdings.held_shards(reports.get(worker_id, ()), opened.get(worker_id, ()))
        )
        for worker_id in (await connection.execute(live)).scalars()
    }
    refused = await _refused_drops(connection, now)
    wanted = (order for order in planned if _order_of(order) not in refused)
    return still_legal(wanted, held, revisions.served.keys())


async def _concerned(
    connection: AsyncConnection, planned: Sequence[RebalanceDirective]
) -> set[WorkerId]:
    """Name whose Shards matter: who gets a directive, and who holds some Layer that is dropped."""
    found = {order.worker_id for order in planned}
    drops = [order for order in planned if order.kind is DirectiveKind.DROP_SHARD]
    for variant, dropped in sorted({(order.variant, order.shard_range) for order in drops}):
        values = {"model_": variant.model, "quantization_": variant.quantization}
        layers = {"first": dropped.start, "end": dropped.end}
        found.update((await connection.execute(_HOLDERS, values | layers)).scalars())
    return found


async def _refused_drops(connection: AsyncConnection, now: float) -> set[_Order]:
    # A Worker refuses a DROP_SHARD that it knows to open a gap; asking again at once is noise.
    query = (
        select(directives)
        .join(workers, workers.c.id == directives.c.worker_id)
        .where(directives.c.kind == DirectiveKind.DROP_SHARD)
        .where(directives.c.state.in_((DirectiveState.FAILED, DirectiveState.EXPIRED)))
        .where(workers.c.cooling_until > now, directives.c.updated_at > now - MAX_COOLING_SECONDS)
    )
    return {
        (
            row["worker_id"],
            DirectiveKind.DROP_SHARD,
            VariantKey(row["model"], row["quantization"]),
            ShardRange(row["start_layer"], row["end_layer"]),
        )
        for row in (await connection.execute(query)).mappings()
    }


def _is_expired(now: float) -> ColumnElement[bool]:
    return and_(directives.c.state.in_(OPEN_STATES), directives.c.deadline < now)


def _order_of(directive: RebalanceDirective) -> _Order:
    variant = replace(directive.variant, revision="")
    return directive.worker_id, directive.kind, variant, directive.shard_range


def _new_row(
    directive: RebalanceDirective, epoch: int, default_seconds: float, now: float
) -> dict[str, Any]:
    return {
        "id": secrets.token_hex(16),
        "epoch": epoch,
        "worker_id": directive.worker_id,
        "kind": directive.kind,
        "model": directive.variant.model,
        "quantization": directive.variant.quantization,
        "start_layer": directive.shard_range.start,
        "end_layer": directive.shard_range.end,
        "reason": directive.reason,
        "state": DirectiveState.ISSUED,
        "detail": "",
        "why": directive.why,
        "issued_at": now,
        "deadline": now + (directive.deadline_seconds or default_seconds),
        "updated_at": now,
        "bytes_done": 0,
        "bytes_total": 0,
    }


def _open_directive(row: Mapping[Any, Any]) -> OpenDirective:
    state = DirectiveState(row["state"])
    return OpenDirective(directive_of(row), state, row["bytes_done"], row["bytes_total"])


def directive_of(row: Mapping[Any, Any]) -> Directive:
    """Turn a row into the message that its Worker gets."""
    return Directive(**{field: row[field] for field in Directive.__struct_fields__})
