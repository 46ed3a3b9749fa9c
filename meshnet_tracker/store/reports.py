"""What Workers say about their Rebalance Directives: how far they are, and how they ended.

A report takes effect on the Worker's Shards at once, since its next heartbeat is seconds away. A
load that makes progress moves its own deadline, so that a big Shard on a slow line does not expire
while it arrives.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import (
    Directive,
    DirectiveKind,
    DirectiveReport,
    DirectiveState,
    ShardReport,
    ShardState,
)
from meshnet_tracker.records import Reporting
from meshnet_tracker.store import cooling, holdings, shards
from meshnet_tracker.store.changes import touch
from meshnet_tracker.store.directives import OPEN_STATES, directive_of, open_among
from meshnet_tracker.store.schema import directives, variants
from meshnet_tracker.store.sets import among

MAX_DETAIL_CHARACTERS = 500

_REPORTED = ("state", "detail", "bytes_done", "bytes_total", "deadline")
_Taken = tuple[Mapping[Any, Any], DirectiveReport]


async def record(
    connection: AsyncConnection, reports: Collection[Reporting], new_deadline: float, now: float
) -> list[DirectiveState | None]:
    """Apply reports, at most one of each Worker; answers the state of each directive afterwards.

    A final state stays. None is: the Worker has no such directive.
    """
    own = among(connection, directives.c.id, {each.directive_id for each in reports})
    found = (await connection.execute(select(directives).where(own))).mappings()
    rows = {(row["worker_id"], row["id"]): row for row in found}
    states: list[DirectiveState | None] = []
    taken: list[_Taken] = []
    for each in reports:
        row = rows.get((each.worker_id, each.directive_id))
        if row is None:
            states.append(None)
        elif _is_taken(row, each.report):
            states.append(each.report.state)
            taken.append((row, each.report))
        else:
            states.append(DirectiveState(row["state"]))
    if taken:
        await _note(connection, taken, new_deadline, now)
        await _settle(connection, taken, now)
        await touch(connection, {row["worker_id"] for row, _ in taken})
    return states


async def note_progress(
    connection: AsyncConnection,
    reported: Mapping[WorkerId, Iterable[ShardReport]],
    new_deadline: float,
    now: float,
) -> None:
    """Take the bytes of loading Shards out of heartbeats as progress of their directives."""
    loading = {
        worker_id: [report for report in reports if report.state is ShardState.LOADING]
        for worker_id, reports in reported.items()
    }
    loaders = [worker_id for worker_id, reports in loading.items() if reports]
    if not loaders:
        return
    opened = await open_among(connection, loaders)
    rows = [
        {"own_id": order.directive.id, "done": done}
        for worker_id, orders in opened.items()
        for order in orders
        if (done := _bytes_done(order.directive, loading[worker_id])) > order.bytes_done
    ]
    if rows:
        changed = update(directives).where(directives.c.id == bindparam("own_id"))
        progressed = changed.values(bytes_done=bindparam("done"), deadline=new_deadline)
        await connection.execute(progressed.values(updated_at=now), rows)


def _is_taken(row: Mapping[Any, Any], report: DirectiveReport) -> bool:
    state = DirectiveState(row["state"])
    return state in OPEN_STATES and not _goes_back(state, report.state)


async def _note(
    connection: AsyncConnection, taken: Collection[_Taken], new_deadline: float, now: float
) -> None:
    values: Any = {name: bindparam(f"new_{name}") for name in _REPORTED}
    changed = update(directives).where(directives.c.id == bindparam("own_id"))
    await connection.execute(
        changed.values(updated_at=now, **values),
        [
            {
                "own_id": row["id"],
                "new_state": report.state,
                "new_detail": report.reason[:MAX_DETAIL_CHARACTERS],
                "new_bytes_done": max(report.bytes_done, row["bytes_done"]),
                "new_bytes_total": max(report.bytes_total, row["bytes_total"]),
                "new_deadline": new_deadline if _progressed(row, report) else row["deadline"],
            }
            for row, report in taken
        ],
    )


def _progressed(row: Mapping[Any, Any], report: DirectiveReport) -> bool:
    return report.state in OPEN_STATES and report.bytes_done > row["bytes_done"]


async def _settle(connection: AsyncConnection, taken: Collection[_Taken], now: float) -> None:
    """Let reports count for what their Workers hold, and for how much they are trusted."""
    ended = {
        WorkerId(row["worker_id"]): (directive_of(row), report.state)
        for row, report in taken
        if report.state not in OPEN_STATES
    }
    if not ended:
        return
    done = {name for name, (_, state) in ended.items() if state is DirectiveState.READY}
    await cooling.forgive(connection, done)
    failed = {name: directive for name, (directive, _) in ended.items() if name not in done}
    called_off = await _called_off(connection, failed)
    await cooling.count_failures(connection, failed.keys() - called_off, now)
    known = await shards.by_worker(connection, ended)
    layers = await _layer_counts(connection)
    held = {name: _held(known.get(name, ()), *end, layers) for name, end in ended.items()}
    await shards.replace(connection, held)


async def _called_off(
    connection: AsyncConnection, failed: Mapping[WorkerId, Directive]
) -> set[WorkerId]:
    """Name whose load ended because a newer directive drops what was still to come."""
    if not failed:
        return set()
    newer = (
        select(directives)
        .where(among(connection, directives.c.worker_id, failed))
        .where(directives.c.kind == DirectiveKind.DROP_SHARD)
        .where(directives.c.epoch > min(each.epoch for each in failed.values()))
    )
    return {
        row["worker_id"]
        for row in (await connection.execute(newer)).mappings()
        if _calls_off(directive_of(row), failed[row["worker_id"]])
    }


def _calls_off(drop: Directive, load: Directive) -> bool:
    return (
        load.kind == DirectiveKind.LOAD_SHARD
        and drop.epoch > load.epoch
        and holdings.same_variant(drop, load)
        and holdings.directive_range(drop).overlap(holdings.directive_range(load)) is not None
    )


def _held(
    known: tuple[ShardReport, ...],
    directive: Directive,
    state: DirectiveState,
    layers: Mapping[tuple[str, str], int],
) -> tuple[ShardReport, ...]:
    is_load = directive.kind == DirectiveKind.LOAD_SHARD
    if state is not DirectiveState.READY:
        return holdings.after_drop(known, directive, (ShardState.LOADING,)) if is_load else known
    if not is_load:
        return holdings.after_drop(known, directive)
    is_tail = layers.get((directive.model, directive.quantization)) == directive.end_layer
    return holdings.after_load(known, directive, is_tail)


async def _layer_counts(connection: AsyncConnection) -> dict[tuple[str, str], int]:
    count = func.json_array_length(variants.c.layer_bytes)
    query = select(variants.c.preset, variants.c.quantization, count)
    return {(row[0], row[1]): row[2] for row in await connection.execute(query)}


def _goes_back(state: DirectiveState, reported: DirectiveState) -> bool:
    # Reports travel on connections of their own and may overtake each other.
    order: Mapping[Any, int] = {open_state: i for i, open_state in enumerate(OPEN_STATES)}
    return reported in order and order[reported] < order[state]


def _bytes_done(directive: Directive, loading: Iterable[ShardReport]) -> int:
    own = (shard.bytes_done for shard in loading if _is_load_of(directive, shard))
    return max(own, default=0)


def _is_load_of(directive: Directive, shard: ShardReport) -> bool:
    return (
        directive.kind == DirectiveKind.LOAD_SHARD
        and holdings.same_variant(directive, shard)
        and holdings.directive_range(directive).overlap(shard.shard_range) is not None
    )
