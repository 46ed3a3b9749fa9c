"""The planner: what every Worker should be ordered next, in one Mesh Snapshot.

First what Operators said (`obeying.py`). Then coverage (`covering.py`), a second replica of every
Layer and more of what is asked for with who is still free (`allotment.py`), Workers that go over
to a Variant that needs them more (`swaps.py`), and better boundaries where nothing else is going on
(`moves.py`). The same snapshot gives the same directives, whatever the order of its parts; when
they are done, planning again gives fewer, and in the end none.
"""

from collections.abc import Iterable
from dataclasses import replace

from meshnet_common.protocol.messages import DirectiveKind, DirectiveReason
from meshnet_tracker.planning.allotment import replicate
from meshnet_tracker.planning.completing import complete
from meshnet_tracker.planning.covering import Covering, cover
from meshnet_tracker.planning.deadlines import deadline_seconds
from meshnet_tracker.planning.draft import Draft, drop
from meshnet_tracker.planning.holders import VariantDraft
from meshnet_tracker.planning.moves import next_move, next_trim
from meshnet_tracker.planning.obeying import obey
from meshnet_tracker.planning.replan import is_searched, next_step
from meshnet_tracker.planning.second_copies import second_copies
from meshnet_tracker.planning.snapshot import (
    Holding,
    MeshSnapshot,
    PlannerPolicy,
    RebalanceDirective,
    VariantKey,
)
from meshnet_tracker.planning.swaps import next_swap


def plan_rebalance(
    snapshot: MeshSnapshot, policy: PlannerPolicy, now: float
) -> tuple[RebalanceDirective, ...]:
    """Plan one pass; `now` is the Tracker's clock, seconds since the epoch.

    Shards that are ordered, loading or draining are in flight: nothing is ordered twice, and a
    Worker gets nothing else of that Variant until it is done.
    """
    return planned(Draft.of(snapshot, policy, now))[0]


def planned(draft: Draft) -> tuple[tuple[RebalanceDirective, ...], Covering]:
    """Plan one pass, and tell also what became of coverage."""
    covering = _cover(draft)
    # Who is still free waits while gaps are closed, until it is known to be enough.
    fills_gaps = any(each.reason is DirectiveReason.GAP for each in draft.directives)
    going_on = complete(draft) | _replan(draft)
    if not fills_gaps:
        going_on |= second_copies(draft, {each.variant for each in draft.directives})
    at_rest = [state for state in draft.variants if state.key not in going_on]
    by_boundary = [state for state in at_rest if not is_searched(state)]
    _trim(draft, by_boundary)
    if not fills_gaps:
        replicate(draft)
        _swap(draft)
    _move(draft, by_boundary)
    return tuple(_with_deadline(draft, each) for each in draft.directives), covering


def coming_variants(
    snapshot: MeshSnapshot, policy: PlannerPolicy, now: float
) -> frozenset[VariantKey]:
    """Name the Variants that all Layers will be ready of, if what is ordered or can be goes well.

    Also of those that are covered already.
    """
    return _cover(Draft.of(snapshot, policy, now)).coming


def _cover(draft: Draft) -> Covering:
    obey(draft)
    _retire(draft)
    return cover(draft)


def _with_deadline(draft: Draft, directive: RebalanceDirective) -> RebalanceDirective:
    """Give a load the time that its bytes take; a drop only waits for Sessions to end."""
    state = draft.states.get(directive.variant)
    if state is None or directive.kind is DirectiveKind.DROP_SHARD:
        return directive
    speed = draft.workers[directive.worker_id].download_bytes_per_sec
    size = state.sizes.range_bytes(directive.shard_range)
    seconds = deadline_seconds(size, speed, draft.policy.load_deadline_seconds)
    return replace(directive, deadline_seconds=seconds)


def _retire(draft: Draft) -> None:
    """Drop what is served no more; it is in no Coverage Map, and its size is unknown."""
    for worker in draft.workers.values():
        for shard in worker.held:
            if shard.variant not in draft.states and shard.holding is Holding.READY:
                draft.issue(
                    drop(
                        worker.worker_id,
                        shard.variant,
                        shard.shard_range,
                        DirectiveReason.OPERATOR,
                        f"{shard.variant} is served no more",
                    )
                )


def _replan(draft: Draft) -> frozenset[VariantKey]:
    """Take one step towards a better placement of each Variant that is at rest."""
    going_on = set()
    for state in draft.variants:
        if is_searched(state) and _is_at_rest(state):
            order = next_step(draft, state)
            if order is not None:
                draft.issue(order)
                going_on.add(state.key)
    return frozenset(going_on)


def _trim(draft: Draft, states: Iterable[VariantDraft]) -> None:
    for state in states:
        if _is_at_rest(state):
            order = next_trim(draft, state)
            if order is not None:
                draft.issue(order)


def _swap(draft: Draft) -> None:
    order = next_swap(draft)
    if order is not None:
        draft.issue(order)


def _move(draft: Draft, states: Iterable[VariantDraft]) -> None:
    for state in states:
        if _is_at_rest(state):
            order = next_move(draft, state)
            if order is not None:
                draft.issue(order)


def _is_at_rest(state: VariantDraft) -> bool:
    """Whether it is covered and nothing of it is in flight: one mover at a time."""
    return not state.gaps and not state.in_flight
