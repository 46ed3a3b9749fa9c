"""Towards the placement that the Workers of a Variant would have if they began anew.

It is followed only if it scores better by more than the policy's threshold, after what the loads
cost of the time that Workers are expected to stay, and only if a way there is found: one Worker at
a time loads what its part has more, or drops what others serve, make before break. Nothing of that
is remembered: each pass looks again, and stops where what is left is worth too little.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveKind, DirectiveReason
from meshnet_tracker.planning.completing import remembered_target
from meshnet_tracker.planning.deadlines import load_seconds
from meshnet_tracker.planning.draft import Draft, drop, load
from meshnet_tracker.planning.holders import SAFE_REPLICAS, Holder, VariantDraft
from meshnet_tracker.planning.orders import Candidate, Placement
from meshnet_tracker.planning.rearrange import Mover, Situation, Step
from meshnet_tracker.planning.score import Score, score_of
from meshnet_tracker.planning.snapshot import RebalanceDirective
from meshnet_tracker.planning.target import MOST_SEARCHED

STEPS_EACH = 4
"""More steps than so many for each Worker are no way."""


@dataclass(frozen=True, slots=True)
class _Way:
    """The first step, and the Layers that all steps load, by Worker."""

    first: Step
    loaded: Mapping[WorkerId, int]


def is_searched(state: VariantDraft) -> bool:
    """Whether the Variant's placement is searched as a whole, not boundary by boundary.

    That is so where Workers are few, and it is known how their speed depends on what they hold.
    """
    few = 2 <= len(state.holders) <= MOST_SEARCHED
    return few and any(holder.worker.layer_rates for holder in state.holders)


def next_step(draft: Draft, state: VariantDraft) -> RebalanceDirective | None:
    """Find the next directive on the way to a placement that is worth it."""
    if not all(_may_move(draft, holder, state) for holder in state.holders):
        return None
    names = [holder.worker_id for holder in state.holders]
    candidates = {each.worker_id: each for each in draft.candidates(names, state.key)}
    target = dict(remembered_target(state.sizes, tuple(candidates.values())))
    now: Placement = {holder.worker_id: holder.run for holder in state.holders}
    before, after = (score_of(state.sizes, candidates, each) for each in (now, target))
    if not _is_better(after, before, 1 + draft.policy.move_gain):
        return None
    way = _way(state, candidates, now, target)
    if way is None or not _pays(draft, state, way, after, before):
        return None
    return _order(state, way.first, after, before)


def _may_move(draft: Draft, holder: Holder, state: VariantDraft) -> bool:
    others = any(shard.variant != state.key for shard in holder.worker.held)
    return holder.may_load and not others and holder.worker_id not in draft.busy


def _is_better(after: Score, before: Score, factor: float) -> bool:
    """Whether it carries so much more, and no single loss opens a gap that would not now."""
    safe = after.replicas >= min(before.replicas, SAFE_REPLICAS)
    return safe and after.worth > before.worth * factor


def _way(
    state: VariantDraft, candidates: Mapping[WorkerId, Candidate], now: Placement, goal: Placement
) -> _Way | None:
    """Go there one step after the other; None if that does not arrive."""
    movers = tuple(Mover(candidates[name], run) for name, run in sorted(now.items()))
    situation = Situation(state.sizes, movers, tuple(state.ready))
    first: Step | None = None
    loaded: dict[WorkerId, int] = {}
    for _ in range(STEPS_EACH * len(movers)):
        steps = situation.steps_to(goal)
        if not steps:
            break
        step = steps[0]
        first = first or step
        if step.kind is DirectiveKind.LOAD_SHARD:
            loaded[step.worker_id] = loaded.get(step.worker_id, 0) + len(step.shard_range)
        situation = situation.after([step])
        if any(mover.run is None for mover in situation.movers):
            return None  # Whoever has empty hands is placed anew, by another rule.
    arrived = {mover.worker_id: mover.run for mover in situation.movers}
    if first is None or any(arrived[name] != part for name, part in goal.items()):
        return None
    return _Way(first, loaded)


def _pays(draft: Draft, state: VariantDraft, way: _Way, after: Score, before: Score) -> bool:
    """Whether the gain is more than the threshold after the time that loading takes."""
    seconds = 0.0
    for worker_id, layers in sorted(way.loaded.items()):
        speed = draft.workers[worker_id].download_bytes_per_sec
        known = load_seconds(layers * state.sizes.bytes_per_layer, speed)
        seconds += draft.policy.load_deadline_seconds if known is None else known
    share = seconds / len(state.holders) / draft.policy.expected_life_seconds
    return share < 1 and _is_better(after, before, (1 + draft.policy.move_gain) / (1 - share))


def _order(state: VariantDraft, step: Step, after: Score, before: Score) -> RebalanceDirective:
    make = load if step.kind is DirectiveKind.LOAD_SHARD else drop
    gain = f"{after.worth:.4g} instead of {before.worth:.4g} tokens/s"
    why = f"a step to a placement of {state.key} for {gain}, on {after.replicas} replica(s)"
    return make(step.worker_id, state.key, step.shard_range, DirectiveReason.SPEED, why)
