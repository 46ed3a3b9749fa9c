"""A second Worker for every Layer, where memory allows, so that no loss opens a gap.

It may lie beside other Variants and wherever a run can be extended. A second copy that would be
incomplete is not begun: it keeps nothing safe, and faster boundaries are worth more.
"""

from collections.abc import Collection, Iterable
from itertools import pairwise

from meshnet_common.protocol.messages import DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.coverage import gaps_of
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.filling import (
    GapPlan,
    extend,
    fill_with_free,
    share_rooms,
    wait_for_emptying,
)
from meshnet_tracker.planning.holders import SAFE_REPLICAS, VariantDraft
from meshnet_tracker.planning.quickly import fill_quickly
from meshnet_tracker.planning.replicas import Need
from meshnet_tracker.planning.snapshot import VariantKey

MOST_CANDIDATES = 16
"""So many Workers with empty hands are looked at, the largest first."""


def second_copies(draft: Draft, but: Collection[VariantKey] = ()) -> frozenset[VariantKey]:
    """Order what is missing of second copies; names the Variants that get one, now or soon."""
    thickening = set()
    for state in draft.variants:
        if state.key not in but and not state.gaps and min(state.planned) < SAFE_REPLICAS:
            plan = _plan(draft, state)
            if not plan.complete and draft.free:
                plan = _by_one(draft, state)
            if plan.complete:
                plan.issue()
                plan.reserve()
                thickening.add(state.key)
    return frozenset(thickening)


def _plan(draft: Draft, state: VariantDraft) -> GapPlan:
    plan = GapPlan.of(draft, state)
    plan.reason = DirectiveReason.REDUNDANCY
    plan.gaps = _thin(state)
    fill_quickly(plan)
    fill_with_free(plan)
    plan.gaps = _split(plan.gaps, state)
    extend(plan)
    plan.gaps = _joined(plan.gaps)
    wait_for_emptying(plan)
    share_rooms(plan)
    return plan


def _by_one(draft: Draft, state: VariantDraft) -> GapPlan:
    """Let one Worker with empty hands take the window that holds all thin Layers, if one does.

    Such a Worker may come from another Variant for it (`swaps.py`): that one must not get it back.
    """
    plan = GapPlan.of(draft, state)
    plan.reason = DirectiveReason.REDUNDANCY
    plan.gaps = _thin(state)
    need = Need(draft, state)
    for candidate in draft.largest_of(draft.free, state.key, MOST_CANDIDATES):
        window = need.best_for(candidate)
        if window is not None and all(window.contains(gap) for gap in plan.gaps):
            plan.used.add(candidate.worker_id)
            plan.orders.append(plan.load(candidate.worker_id, window))
            plan.close(window)
            break
    return plan


def _thin(state: VariantDraft) -> list[ShardRange]:
    return list(gaps_of([count >= SAFE_REPLICAS for count in state.planned]))


def _split(gaps: Iterable[ShardRange], state: VariantDraft) -> list[ShardRange]:
    """Cut where runs begin and end, so that who lies beside a piece can be extended into it."""
    edges = {edge for holder in state.holders for edge in (holder.run.start, holder.run.end)}
    pieces = []
    for gap in gaps:
        cuts = [gap.start, *sorted(e for e in edges if gap.start < e < gap.end), gap.end]
        pieces += [ShardRange(low, high) for low, high in pairwise(cuts)]
    return pieces


def _joined(pieces: Iterable[ShardRange]) -> list[ShardRange]:
    joined: list[ShardRange] = []
    for piece in sorted(pieces):
        if joined and joined[-1].end == piece.start:
            joined[-1] = joined[-1].union(piece)
        else:
            joined.append(piece)
    return joined
