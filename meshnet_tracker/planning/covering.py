"""Coverage over several Variants: which are served whole, where memory is too short for all.

The one that is asked for most comes first. Whatever can be covered is; a Variant that cannot is
begun only if there is no other, and gets what is left over: never two halves of two models.

What a Variant is served by is taken away from it only to cover another one that cannot be covered
otherwise, and only if that one is covered by it: from a Variant that cannot be covered itself, so
that nobody is served by it, or from one that nobody asks for, for one that is asked for.
"""

from dataclasses import dataclass

from meshnet_tracker.planning.allotment import place_fresh
from meshnet_tracker.planning.completing import is_begun_as_placed
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.filling import GapPlan
from meshnet_tracker.planning.gaps import plan_gaps, plan_giving_up
from meshnet_tracker.planning.helping import cover_soonest
from meshnet_tracker.planning.holders import VariantDraft
from meshnet_tracker.planning.snapshot import VariantKey


@dataclass(frozen=True, slots=True)
class Covering:
    """What one pass does about coverage: which Variants come, and the plans of the others."""

    coming: frozenset[VariantKey]
    short: tuple[GapPlan, ...]


def cover(draft: Draft) -> Covering:
    """Close the gaps of each Variant in turn."""
    fresh: list[GapPlan] = []
    short: list[GapPlan] = []
    for state in draft.variants:
        if not state.gaps:
            if not all(state.ready):
                _hasten(draft, state)
            continue
        plan = plan_gaps(draft, state, _less_wanted(draft, state))
        if not plan.covers:
            short.append(plan)
        elif short and fresh and not state.started:
            # Beside what is begun now there may be room for one that is wanted more; that is
            # known in the next pass.
            continue
        elif state.started or plan.quick or not plan.used <= draft.free:
            plan.issue()
            plan.reserve()
        else:
            plan.reserve()
            fresh.append(plan)
    rescued = _rescue(draft, short)
    left = [plan for plan in short if plan.state.key != rescued]
    _serve_in_part(draft, left, alone=not fresh and rescued is None)
    if fresh:
        place_fresh(draft, fresh)
    missing = {plan.state.key for plan in left}
    coming = frozenset(state.key for state in draft.variants if state.key not in missing)
    return Covering(coming, tuple(left))


def _hasten(draft: Draft, state: VariantDraft) -> None:
    """Let others load as well what would be loading for long."""
    if is_begun_as_placed(draft, state):
        return
    plan = GapPlan.of(draft, state)
    cover_soonest(plan, _less_wanted(draft, state))
    plan.issue()
    plan.reserve()


def _less_wanted(draft: Draft, state: VariantDraft) -> set[VariantKey]:
    """Name the Variants that serve nobody now and are asked for less."""
    wanted = draft.wanted(state)
    return {
        each.key
        for each in draft.variants
        if each.started and not all(each.ready) and draft.wanted(each) < wanted
    }


def _rescue(draft: Draft, short: list[GapPlan]) -> VariantKey | None:
    """Cover one more Variant with what serves those that are given up for it."""
    for plan in short:
        given_up = _given_up(draft, plan.state, short)
        rescue = plan_giving_up(draft, plan.state, given_up) if given_up else None
        if rescue is not None:
            rescue.issue()
            rescue.reserve()
            return plan.state.key
    return None


def _given_up(draft: Draft, state: VariantDraft, short: list[GapPlan]) -> set[VariantKey]:
    broken = (plan.state for plan in short if plan.state.started)
    given_up = {each.key for each in broken if not all(each.ready)}
    if draft.wanted(state) > 0:
        given_up |= {each.key for each in draft.variants if not draft.wanted(each)}
    return given_up - {state.key}


def _serve_in_part(draft: Draft, short: list[GapPlan], *, alone: bool) -> None:
    """Fill what can be filled of Variants that were begun; begin one only where there is none."""
    begun = not alone or any(state.started for state in draft.variants)
    for stale in short:
        if begun and not stale.state.started:
            continue
        begun = True
        plan = plan_gaps(draft, stale.state)
        plan.issue()
        plan.reserve()
