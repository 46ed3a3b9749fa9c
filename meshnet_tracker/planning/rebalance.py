"""The planner: what every Worker should be ordered next, in one Mesh Snapshot.

Coverage first (`gaps.py`, or `placement.py` for a Variant that nobody holds yet), then replicas
for who is still free (`replicas.py`), and better boundaries where nothing else is going on
(`moves.py`). The same snapshot gives the same directives, whatever the order of its parts; when
they are done, planning again gives fewer, and in the end none.
"""

from meshnet_common.protocol.messages import DirectiveReason
from meshnet_tracker.planning.draft import Draft, VariantDraft, drop, load
from meshnet_tracker.planning.gaps import GapPlan, plan_gaps
from meshnet_tracker.planning.moves import next_move, next_trim
from meshnet_tracker.planning.placement import fresh_placement
from meshnet_tracker.planning.replicas import replicate
from meshnet_tracker.planning.snapshot import (
    Holding,
    MeshSnapshot,
    PlannerPolicy,
    RebalanceDirective,
    VariantKey,
)


def plan_rebalance(
    snapshot: MeshSnapshot, policy: PlannerPolicy, now: float
) -> tuple[RebalanceDirective, ...]:
    """Plan one pass; `now` is the Tracker's clock, seconds since the epoch.

    Shards that are ordered, loading or draining are in flight: nothing is ordered twice, and a
    Worker gets nothing else of that Variant until it is done.
    """
    draft = Draft.of(snapshot, policy, now)
    _retire(draft)
    _cover(draft)
    _trim(draft)
    if not _fills_gaps(draft):
        replicate(draft)
    _move(draft)
    return tuple(draft.directives)


def coming_variants(
    snapshot: MeshSnapshot, policy: PlannerPolicy, now: float
) -> frozenset[VariantKey]:
    """Name the Variants that all Layers will be ready of, if what is ordered or can be goes well.

    Also of those that are covered already.
    """
    draft = Draft.of(snapshot, policy, now)
    _retire(draft)
    return _cover(draft)


def _fills_gaps(draft: Draft) -> bool:
    """Whether this pass closes gaps; who is still free waits until it is known to be enough."""
    return any(directive.reason is DirectiveReason.GAP for directive in draft.directives)


def _retire(draft: Draft) -> None:
    """Drop what is served no more; it is in no Coverage Map, and its size is unknown."""
    served = {state.key for state in draft.variants}
    for worker in draft.workers.values():
        for shard in worker.held:
            if shard.variant not in served and shard.holding is Holding.READY:
                draft.issue(
                    drop(
                        worker.worker_id,
                        shard.variant,
                        shard.shard_range,
                        DirectiveReason.OPERATOR,
                    )
                )


def _cover(draft: Draft) -> frozenset[VariantKey]:
    """Close the gaps of each Variant in turn; answers which will have none.

    A Variant that nobody holds is begun only if it can be covered, or if there is no other: never
    two halves of two models.
    """
    fresh: list[GapPlan] = []
    coming = {state.key for state in draft.variants if not state.gaps}
    begun = any(state.started for state in draft.variants)
    for state in draft.variants:
        if not state.gaps:
            continue
        plan = plan_gaps(draft, state)
        if plan.covers:
            coming.add(state.key)
        if begun and not state.started and not plan.complete:
            continue
        begun = True
        can_wait = plan.complete and not state.started and plan.used <= draft.free
        draft.reserve(plan.used)
        if can_wait:
            fresh.append(plan)
        else:
            _issue(draft, plan)
    for plan in fresh[1:]:
        _issue(draft, plan)
    if fresh:
        _place_copies(draft, fresh[0])
    return frozenset(coming)


def _issue(draft: Draft, plan: GapPlan) -> None:
    for directive in plan.orders:
        draft.issue(directive)


def _place_copies(draft: Draft, plan: GapPlan) -> None:
    """Let everybody who is left join the first Variant's placement, for whole copies of it."""
    state = plan.state
    candidates = draft.candidates(plan.used | draft.free, state.key)
    placed = fresh_placement(state.sizes, candidates)
    if sum(map(len, placed.values())) < state.sizes.layer_count:
        _issue(draft, plan)
        return
    draft.free |= plan.used
    for worker_id, shard_range in sorted(placed.items()):
        draft.issue(load(worker_id, state.key, shard_range, DirectiveReason.GAP))


def _trim(draft: Draft) -> None:
    for state in draft.variants:
        if _is_at_rest(state):
            order = next_trim(draft, state)
            if order is not None:
                draft.issue(order)


def _move(draft: Draft) -> None:
    for state in draft.variants:
        if _is_at_rest(state):
            order = next_move(draft, state)
            if order is not None:
                draft.issue(order)


def _is_at_rest(state: VariantDraft) -> bool:
    """Whether it is covered and nothing of it is in flight: one mover at a time."""
    return not state.gaps and not state.in_flight
