"""Which planned Rebalance Directives may still be issued, a moment after they were planned; pure.

The planner decided on a snapshot. In between a Worker may have been lost or have gone on its own,
so the store asks again, in the transaction that issues.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveKind
from meshnet_tracker.planning.snapshot import HeldShard, Holding, RebalanceDirective, VariantKey
from meshnet_tracker.store.holdings import uncovered, with_drop, with_load


def still_legal(
    planned: Iterable[RebalanceDirective],
    held: Mapping[WorkerId, Sequence[HeldShard]],
    served: Collection[VariantKey],
) -> list[RebalanceDirective]:
    """Choose from a plan, in its order; `held` has an entry for each live Worker.

    Left out is what orders nothing new, a DROP_SHARD that meets Layers which drain already, and one
    of a served Variant with a ready Layer that no other Worker has ready (A6), unless the planner
    gives that Variant up. A directive counts for the ones behind it.
    """
    holds = dict(held)
    legal: list[RebalanceDirective] = []
    for directive in planned:
        own = holds.get(directive.worker_id)
        if own is None or not _orders_something(own, directive):
            continue
        if directive.kind is DirectiveKind.LOAD_SHARD:
            holds[directive.worker_id] = with_load(own, directive.variant, directive.shard_range)
        elif _must_stay(holds, directive, served):
            continue
        else:
            holds[directive.worker_id] = with_drop(own, directive.variant, directive.shard_range)
        legal.append(directive)
    return legal


def _must_stay(
    holds: Mapping[WorkerId, Sequence[HeldShard]],
    directive: RebalanceDirective,
    served: Collection[VariantKey],
) -> bool:
    if directive.gives_up or directive.variant not in served:
        return False
    return _opens_gap(holds, directive)


def _orders_something(own: Sequence[HeldShard], directive: RebalanceDirective) -> bool:
    asked = HeldShard(directive.variant, directive.shard_range, Holding.ORDERED)
    if directive.kind is DirectiveKind.LOAD_SHARD:
        return bool(uncovered(own, asked))
    touched = [shard for shard in own if _overlaps(shard, directive)]
    return bool(touched) and not any(shard.holding is Holding.DRAINING for shard in touched)


def _opens_gap(
    holds: Mapping[WorkerId, Sequence[HeldShard]], directive: RebalanceDirective
) -> bool:
    others = [
        shard
        for worker_id, shards in holds.items()
        if worker_id != directive.worker_id
        for shard in shards
        if shard.holding is Holding.READY
    ]
    lost = [
        HeldShard(directive.variant, piece, Holding.READY)
        for shard in holds[directive.worker_id]
        if shard.holding is Holding.READY and _overlaps(shard, directive)
        if (piece := shard.shard_range.overlap(directive.shard_range))
    ]
    return any(uncovered(others, piece) for piece in lost)


def _overlaps(shard: HeldShard, directive: RebalanceDirective) -> bool:
    same = shard.variant == directive.variant
    return same and shard.shard_range.overlap(directive.shard_range) is not None
