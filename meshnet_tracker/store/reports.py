"""What Workers say about their Rebalance Directives: how far they are, and how they ended.

A report takes effect on the Worker's Shards at once, since its next heartbeat is seconds away. A
load that makes progress moves its own deadline, so that a big Shard on a slow line does not expire
while it arrives.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import bindparam, select, update
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
from meshnet_tracker.store import cooling, holdings, shards
from meshnet_tracker.store.changes import touch
from meshnet_tracker.store.directives import OPEN_STATES, directive_of, open_among
from meshnet_tracker.store.errors import UnknownDirectiveError
from meshnet_tracker.store.schema import directives, variants

MAX_DETAIL_CHARACTERS = 500


async def record(
    connection: AsyncConnection,
    worker_id: WorkerId,
    directive_id: str,
    report: DirectiveReport,
    new_deadline: float,
    now: float,
) -> DirectiveState:
    """Apply a report; answers the state that holds afterwards, since a final one stays.

    Raises UnknownDirectiveError.
    """
    own = (directives.c.id == directive_id) & (directives.c.worker_id == worker_id)
    row = (await connection.execute(select(directives).where(own))).mappings().first()
    if row is None:
        raise UnknownDirectiveError(directive_id)
    state = DirectiveState(row["state"])
    if state not in OPEN_STATES or _goes_back(state, report.state):
        return state
    progressed = report.state in OPEN_STATES and report.bytes_done > row["bytes_done"]
    await connection.execute(
        update(directives)
        .where(own)
        .values(
            state=report.state,
            detail=report.reason[:MAX_DETAIL_CHARACTERS],
            updated_at=now,
            bytes_done=max(report.bytes_done, row["bytes_done"]),
            bytes_total=max(report.bytes_total, row["bytes_total"]),
            deadline=new_deadline if progressed else row["deadline"],
        )
    )
    await _settle(connection, worker_id, directive_of(row), report.state, now)
    await touch(connection, (worker_id,))
    return report.state


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


async def _settle(
    connection: AsyncConnection,
    worker_id: WorkerId,
    directive: Directive,
    state: DirectiveState,
    now: float,
) -> None:
    known = await shards.of_worker(connection, worker_id)
    is_load = directive.kind == DirectiveKind.LOAD_SHARD
    if state is DirectiveState.READY:
        await cooling.forgive(connection, (worker_id,))
        if is_load:
            is_tail = await _ends_variant(connection, directive)
            known = holdings.after_load(known, directive, is_tail)
        else:
            known = holdings.after_drop(known, directive)
    elif state not in OPEN_STATES:
        await cooling.count_failure(connection, worker_id, now)
        if is_load:
            known = holdings.after_drop(known, directive, (ShardState.LOADING,))
    await shards.replace(connection, {worker_id: known})


async def _ends_variant(connection: AsyncConnection, directive: Directive) -> bool:
    query = select(variants.c.layer_bytes).where(
        variants.c.preset == directive.model,
        variants.c.quantization == directive.quantization,
    )
    layer_bytes: list[int] | None = (await connection.execute(query)).scalar()
    return layer_bytes is not None and directive.end_layer == len(layer_bytes)


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
