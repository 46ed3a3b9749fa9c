"""Filling Coverage Gaps of one Variant, from what is cheapest to what moves most.

First what takes nothing away from anybody (`filling.py`); then what can be had by moving: Layers
that others serve as well, Workers that are redundant (`clearing.py`), another order of Workers, and
at last room that walks from Worker to Worker.
"""

from collections.abc import Collection

from meshnet_common.protocol.messages import DirectiveKind, DirectiveReason
from meshnet_tracker.planning.clearing import borrow, clear
from meshnet_tracker.planning.draft import Draft, candidate_of, count_in, drop, load
from meshnet_tracker.planning.filling import (
    GapPlan,
    extend,
    fill_with_free,
    share_rooms,
    share_rooms_now,
    wait_for_emptying,
)
from meshnet_tracker.planning.helping import cover_soonest
from meshnet_tracker.planning.holders import Holder, VariantDraft
from meshnet_tracker.planning.placement import fill_range
from meshnet_tracker.planning.pushes import Push, best_trim, next_push
from meshnet_tracker.planning.quickly import fill_quickly
from meshnet_tracker.planning.rearrange import MOST_WORKERS, Mover, Step, steps_to_coverage
from meshnet_tracker.planning.snapshot import RebalanceDirective, VariantKey


def plan_gaps(draft: Draft, state: VariantDraft, given_up: Collection[VariantKey] = ()) -> GapPlan:
    """Plan for all gaps of a Variant; issues nothing.

    One that nobody holds yet is better placed as a whole, if free Workers are enough for it.
    """
    if not state.started:
        if _spreads(draft, state):
            plan = GapPlan.of(draft, state)
            cover_soonest(plan)
            if plan.complete:
                return plan
        fresh = GapPlan.of(draft, state)
        fill_with_free(fresh)
        if fresh.complete:
            return fresh
    plan = GapPlan.of(draft, state)
    cover_soonest(plan, given_up)
    if plan.complete:
        return plan
    fill_quickly(plan)
    fill_with_free(plan)
    extend(plan)
    share_rooms_now(plan)
    wait_for_emptying(plan)
    before = plan.saved()
    share_rooms(plan)
    _trim(plan)
    clear(plan, [state.key])
    if plan.gaps:
        borrow(plan, before)
    if plan.gaps and not _rearrange(plan) and not plan.orders and not state.in_flight:
        _push(plan)
    return plan


def _spreads(draft: Draft, state: VariantDraft) -> bool:
    """Whether a Variant that nobody holds begins on all lines, beside others that begin as well.

    Where it is known how speeds depend on the Layers held, the better placement is worth more.
    """
    several = any(each.gaps for each in draft.variants if each.key != state.key)
    several |= bool(draft.directives)
    return several and not any(worker.layer_rates for worker in draft.workers.values())


def plan_giving_up(
    draft: Draft, state: VariantDraft, given_up: Collection[VariantKey]
) -> GapPlan | None:
    """Plan for all gaps with what serves these other Variants; None if that is too little."""
    plan = GapPlan.of(draft, state)
    fill_quickly(plan)
    fill_with_free(plan)
    extend(plan)
    wait_for_emptying(plan)
    if plan.gaps:
        borrow(plan, plan.saved(), given_up)
    return plan if plan.complete else None


def _trim(plan: GapPlan) -> None:
    """Let Workers beside a gap drop far Layers that others serve, to take a part of it next."""
    key, ready = plan.state.key, plan.ready[plan.state.key]
    while plan.gaps:
        idle = plan.idle_holders()
        trims = [
            trim
            for gap in plan.gaps
            if (beside := [each for each in idle if _lies_beside(each, gap.start, gap.end)])
            and (trim := best_trim(plan.state.sizes, ready, beside, gap)) is not None
        ]
        if not trims:
            return
        trim = max(trims, key=lambda trim: (len(trim.gained), trim.holder.worker_id))
        why = f"others serve these Layers, and nobody serves {trim.gained}: room for them"
        order = drop(trim.holder.worker_id, key, trim.dropped, DirectiveReason.GAP, why)
        plan.orders.append(order)
        plan.used.add(trim.holder.worker_id)
        plan.promised[trim.holder.worker_id] = plan.state.sizes.range_bytes(trim.gained)
        count_in(ready, trim.dropped, -1)
        plan.close(trim.gained)


def _lies_beside(holder: Holder, start: int, end: int) -> bool:
    return holder.run.end == start or holder.run.start == end


def _rearrange(plan: GapPlan) -> bool:
    """Take another order of Workers instead, if that covers everything; one step at a time.

    While something is in flight nothing is ordered, so that nobody leaves the way.
    """
    state = plan.state
    if not state.started or len(state.holders) > MOST_WORKERS:
        return False
    movers = _movers(plan)
    steps = steps_to_coverage(state.sizes, movers, state.planned, sum(map(len, plan.gaps)))
    if steps is None:
        return False
    placed = fill_range(state.sizes, state.sizes.whole, [mover.candidate for mover in movers])
    plan.falls_short = sum(map(len, placed.values())) < state.sizes.layer_count
    plan.gaps = []
    plan.used = {mover.worker_id for mover in movers}
    plan.promised = {}
    plan.orders = [] if state.in_flight else [_order(plan, step) for step in steps]
    return True


def _movers(plan: GapPlan) -> list[Mover]:
    draft, state = plan.draft, plan.state
    able = [
        plan.within_room(h) for h in state.holders if not h.barred and h.worker_id not in draft.busy
    ]
    holding = [Mover(candidate_of(h.worker, draft.policy, h.budget_bytes), h.run) for h in able]
    empty = draft.largest_of(draft.free | draft.emptying, state.key, MOST_WORKERS + 1)
    return [*holding, *(Mover(candidate, None) for candidate in empty)]


def _order(plan: GapPlan, step: Step | Push) -> RebalanceDirective:
    gaps = ", ".join(map(str, plan.state.gaps))
    make = load if step.kind is DirectiveKind.LOAD_SHARD else drop
    why = f"a step on the way to Layers {gaps} of {plan.state.key}, which nobody serves"
    return make(step.worker_id, plan.state.key, step.shard_range, DirectiveReason.GAP, why)


def _push(plan: GapPlan) -> None:
    """Bring room one step closer to a gap; alone, since the next step needs this one done."""
    key = plan.state.key
    push = next_push(plan.state.sizes, plan.ready[key], plan.idle_holders(), sorted(plan.gaps))
    if push is not None:
        plan.orders.append(_order(plan, push))
