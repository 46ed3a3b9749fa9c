"""Workers that go on to the Layers that their Variant's placement has for them.

A Variant begins with what covers it soonest (`first_parts.py`). The snapshot does not say what was
meant, so the placement is made again from the Workers that hold the Variant: if each run lies
inside its Worker's part of it, they are on the way there, and load the rest.
"""

from collections.abc import Iterator
from functools import lru_cache

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.draft import Draft, load
from meshnet_tracker.planning.holders import Holder, VariantDraft
from meshnet_tracker.planning.orders import Candidate, Placement
from meshnet_tracker.planning.snapshot import VariantKey
from meshnet_tracker.planning.target import MOST_SEARCHED, target_placement

REMEMBERED = 64


def complete(draft: Draft) -> frozenset[VariantKey]:
    """Order what is missing of placements that were begun; names all that are on the way or there.

    Their boundaries are where they should be, so that nobody should drop anything of it.
    """
    going = set()
    ordered = {directive.variant for directive in draft.directives}
    for state in draft.variants:
        if state.key in ordered or state.gaps or not _may_be_under_way(draft, state):
            continue
        target = _target_of(draft, state)
        if target is not None:
            going.add(state.key)
            for holder, piece in _missing(state, target):
                why = f"its part of the placement of {state.key}, of which it loaded the first"
                reason = DirectiveReason.REDUNDANCY
                draft.issue(load(holder.worker_id, state.key, piece, reason, why))
    return frozenset(going)


def is_begun_as_placed(draft: Draft, state: VariantDraft) -> bool:
    """Whether it is known how speeds depend on the Layers held, and all is a part of a placement.

    That placement is worth more than to be there a little sooner.
    """
    few = 2 <= len(state.holders) <= MOST_SEARCHED
    if not few or not any(holder.worker.layer_rates for holder in state.holders):
        return False
    alone = all(_holds_it_only(draft, holder, state) for holder in state.holders)
    return alone and _target_of(draft, state) is not None


def _may_be_under_way(draft: Draft, state: VariantDraft) -> bool:
    """Whether few Workers hold it, and nothing else, and some have room for more."""
    if not 2 <= len(state.holders) <= MOST_SEARCHED:
        return False
    least = state.sizes.smallest_layer_bytes
    roomy = any(h.may_load and draft.rooms[h.worker_id] >= least for h in state.holders)
    return roomy and all(_holds_it_only(draft, holder, state) for holder in state.holders)


def _holds_it_only(draft: Draft, holder: Holder, state: VariantDraft) -> bool:
    others = any(shard.variant != state.key for shard in holder.worker.held)
    return not others and not holder.barred and holder.worker_id not in draft.busy


def _target_of(draft: Draft, state: VariantDraft) -> Placement | None:
    """Return their placement; None if some run is no part of it."""
    names = [holder.worker_id for holder in state.holders]
    candidates = tuple(draft.candidates(names, state.key))
    target = dict(remembered_target(state.sizes, candidates))
    on_the_way = all(
        (part := target.get(holder.worker_id)) is not None and part.contains(holder.run)
        for holder in state.holders
    )
    return target if on_the_way else None


def _missing(state: VariantDraft, target: Placement) -> Iterator[tuple[Holder, ShardRange]]:
    """Yield what each Worker may load next."""
    for holder in state.holders:
        pieces = target[holder.worker_id].minus(holder.run)
        if pieces and holder.may_load:
            yield holder, pieces[0]


@lru_cache(maxsize=REMEMBERED)
def remembered_target(
    sizes: LayerSizes, candidates: tuple[Candidate, ...]
) -> tuple[tuple[WorkerId, ShardRange], ...]:
    """Return their placement; the same Workers have the same one, pass after pass."""
    return tuple(sorted(target_placement(sizes, candidates).items()))
