"""The Coverage Map of one Variant, counted by the database (A1).

Every ready Shard adds one where it starts and takes one away where it ends; an open DROP_SHARD does
the opposite, since its Layers no longer count from the moment it is issued; nor do those of a
Worker that is about to leave. Sums over the edges in order are the replicas.

    ready Shards   [0 ..... 12)  [8 ..... 20)     edges  0:+1  8:+1  12:-1  20:-1
    map            [0,8) 1   [8,12) 2   [12,20) 1   [20,28) 0
"""

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    FromClause,
    Integer,
    Select,
    and_,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.protocol.messages import CoverageRow, DirectiveKind, ShardState
from meshnet_tracker.planning.snapshot import VariantKey
from meshnet_tracker.store.directives import OPEN_STATES
from meshnet_tracker.store.revisions import Weights
from meshnet_tracker.store.schema import directives, worker_shards, workers


async def rows(
    connection: AsyncConnection, variant: VariantKey, weights: Weights
) -> tuple[CoverageRow, ...]:
    """Return the map, sorted and without overlap, from Layer 0 to the last one."""
    found = await connection.execute(_query(variant, weights))
    return tuple(
        CoverageRow(start_layer=start, end_layer=end, worker_count=count)
        for start, end, count in found
    )


def _query(variant: VariantKey, weights: Weights) -> Select[int, int, int]:
    edges = _edges(variant, weights).subquery("edges")
    change = func.sum(edges.c.delta)
    is_bound = edges.c.layer.in_((0, weights.layer_count))
    changes = (
        select(edges.c.layer, change.label("delta"))
        .group_by(edges.c.layer)
        # Where one Shard ends and another begins the count goes on: no new row of the map.
        .having(or_(change != 0, is_bound))
        .subquery("changes")
    )
    layer = changes.c.layer
    runs = select(
        layer.label("start_layer"),
        func.lead(layer).over(order_by=layer).label("end_layer"),
        # A sum of sums is a decimal number on PostgreSQL.
        cast(func.sum(changes.c.delta).over(order_by=layer), Integer).label("worker_count"),
    ).subquery("runs")
    return (
        select(runs.c.start_layer, runs.c.end_layer, runs.c.worker_count)
        .where(runs.c.end_layer.is_not(None))
        .order_by(runs.c.start_layer)
    )


def _edges(variant: VariantKey, weights: Weights) -> CompoundSelect[int, int]:
    layer_count = weights.layer_count
    ready = and_(
        worker_shards.c.model == variant.model,
        worker_shards.c.quantization == variant.quantization,
        worker_shards.c.state == ShardState.READY,
        # Other weights, or more Layers, are of a model that had this name before (`revisions.py`).
        worker_shards.c.digest.in_(("", weights.digest)),
        worker_shards.c.end_layer <= layer_count,
        worker_shards.c.worker_id.not_in(select(workers.c.id).where(workers.c.leaving)),
    )
    dropped = worker_shards.join(
        directives,
        and_(
            directives.c.worker_id == worker_shards.c.worker_id,
            directives.c.model == worker_shards.c.model,
            directives.c.quantization == worker_shards.c.quantization,
            directives.c.kind == DirectiveKind.DROP_SHARD,
            directives.c.state.in_(OPEN_STATES),
            directives.c.start_layer < worker_shards.c.end_layer,
            directives.c.end_layer > worker_shards.c.start_layer,
        ),
    )
    drop_start = _greater(worker_shards.c.start_layer, directives.c.start_layer)
    drop_end = _smaller(worker_shards.c.end_layer, directives.c.end_layer)
    return union_all(
        _edge(worker_shards.c.start_layer, 1, worker_shards, ready),
        _edge(worker_shards.c.end_layer, -1, worker_shards, ready),
        _edge(drop_start, -1, dropped, ready),
        _edge(drop_end, 1, dropped, ready),
        select(literal(0).label("layer"), literal(0).label("delta")),
        select(literal(layer_count).label("layer"), literal(0).label("delta")),
    )


def _edge(
    layer: ColumnElement[int], delta: int, source: FromClause, condition: ColumnElement[bool]
) -> Select[int, int]:
    return (
        select(layer.label("layer"), literal(delta).label("delta"))
        .select_from(source)
        .where(condition)
    )


def _greater(one: ColumnElement[int], other: ColumnElement[int]) -> ColumnElement[int]:
    # Two-argument max() is SQLite's, GREATEST() PostgreSQL's.
    return case((one > other, one), else_=other)


def _smaller(one: ColumnElement[int], other: ColumnElement[int]) -> ColumnElement[int]:
    return case((one < other, one), else_=other)
