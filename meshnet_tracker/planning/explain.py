"""What the planner would do with a Mesh Snapshot and why, and why it does no more; for people.

It runs the very pass that the Tracker runs. The same snapshot gives the same words.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.coverage import gaps_of
from meshnet_tracker.planning.covering import Covering
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.holders import VariantDraft, moves
from meshnet_tracker.planning.pins import refusal
from meshnet_tracker.planning.rebalance import planned
from meshnet_tracker.planning.snapshot import (
    MeshSnapshot,
    PlannerPolicy,
    RebalanceDirective,
    VariantKey,
)


@dataclass(frozen=True, slots=True)
class VariantExplanation:
    """One Variant: how it is served, what is done now, and why not more."""

    key: VariantKey
    layers: int
    requests_per_second: float
    replicas: int
    """Of the thinnest Layer, ready."""
    gaps: tuple[ShardRange, ...]
    """What nobody is ready to serve."""
    open_gaps: tuple[ShardRange, ...]
    """What of it nobody is ordered to load either, after this pass."""
    directives: tuple[RebalanceDirective, ...]
    why_not_more: str

    @property
    def line(self) -> str:
        gaps = ", ".join(map(str, self.gaps)) or "none"
        said = f"{self.key}: {self.layers} Layers, {self.requests_per_second:.3g} requests/s, "
        said += f"thinnest Layer on {self.replicas}, gaps {gaps}"
        return f"{said}: {self.why_not_more}" if self.why_not_more else said


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one pass would order, and what it could not."""

    directives: tuple[RebalanceDirective, ...]
    variants: tuple[VariantExplanation, ...]
    remarks: tuple[str, ...]
    """One sentence each: gaps that stay, pins that are ignored, Workers that wait."""

    @property
    def lines(self) -> tuple[str, ...]:
        orders = (
            f"{each.worker_id}: {each.kind} {each.variant} {each.shard_range} "
            f"({each.reason}): {each.why}"
            for each in self.directives
        )
        return (*(each.line for each in self.variants), *orders, *self.remarks)


def explain(snapshot: MeshSnapshot, policy: PlannerPolicy, now: float) -> Explanation:
    """Plan one pass and say what it is about; changes nothing."""
    draft = Draft.of(snapshot, policy, now)
    before = {state.key: gaps_of(state.ready) for state in draft.variants}
    thinnest = {state.key: min(state.ready) for state in draft.variants}
    directives, covering = planned(draft)
    variants = tuple(
        VariantExplanation(
            key=state.key,
            layers=state.sizes.layer_count,
            requests_per_second=draft.wanted(state),
            replicas=thinnest[state.key],
            gaps=before[state.key],
            open_gaps=state.gaps,
            directives=tuple(each for each in directives if each.variant == state.key),
            why_not_more=_why_not_more(draft, state, covering),
        )
        for state in draft.variants
    )
    remarks = (
        *_gap_remarks(variants),
        *_pin_remarks(snapshot, draft),
        *_worker_remarks(draft, now),
    )
    return Explanation(directives, variants, remarks)


def _why_not_more(draft: Draft, state: VariantDraft, covering: Covering) -> str:
    """Say why Layers stay that nobody is ordered to load; empty: none do."""
    if not state.gaps:
        return "what is missing is on its way" if not all(state.ready) else ""
    if state.key in covering.coming:
        return "a step on the way is ordered or in flight; what is missing comes after it"
    missing = sum(map(len, state.gaps))
    room, cooling = _room(draft, state)
    if cooling:
        why = f"{cooling} Worker(s) with room cool down"
    elif room < missing:
        why = f"there is room for {room} more"
    else:
        why = "no safe way to free the room beside them was found"
    return f"{missing} Layers are missing, and {why}"


def _room(draft: Draft, state: VariantDraft) -> tuple[int, int]:
    """Count the Layers that fit somewhere, and the Workers with room that may load nothing now."""
    room = cooling = 0
    for worker_id, worker in draft.workers.items():
        if state.key.quantization not in worker.quantizations or worker_id in draft.bound:
            continue
        fits = min(draft.rooms[worker_id] // state.sizes.bytes_per_layer, state.sizes.layer_count)
        if fits > 0 and worker_id in draft.cooling:
            cooling += 1
        else:
            room += max(0, fits)
    return room, cooling


def _gap_remarks(variants: tuple[VariantExplanation, ...]) -> Iterator[str]:
    for each in variants:
        if each.open_gaps:
            gaps = ", ".join(map(str, each.open_gaps))
            yield f"Layers {gaps} of {each.key} stay without a Worker: {each.why_not_more}."


def _pin_remarks(snapshot: MeshSnapshot, draft: Draft) -> Iterator[str]:
    sizes = {key: LayerSizes.of(variant) for key, variant in snapshot.variants()}
    for pin in sorted(snapshot.pins):
        reason = refusal(pin, draft.workers, sizes, draft.policy)
        if reason:
            said = f"The pin of {pin.worker_id} to Layers {pin.shard_range} of {pin.variant}"
            yield f"{said} is ignored: {reason}."


def _worker_remarks(draft: Draft, now: float) -> Iterator[str]:
    for worker_id, worker in draft.workers.items():
        if worker_id in draft.cooling:
            left = worker.cooling_until - now
            yield f"{worker_id} cools down for {left:.0f} s more: its last load failed or ran out."
        if worker.retiring and worker.held and worker_id not in draft.busy:
            if any(map(moves, worker.held)):
                yield f"{worker_id} is to be emptied, and has something in flight."
            else:
                yield f"{worker_id} is to be emptied, and nobody else is ready to serve it all."
