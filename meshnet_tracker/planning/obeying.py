"""Brings bound Workers to what Operators said of them (`pins.py`), make before break.

First the Layers of the pin are loaded, if they fit beside what is held; whatever else is held is
dropped as soon as others are ready to serve all of it, and not before.
"""

from collections.abc import Iterator
from dataclasses import replace

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReason
from meshnet_tracker.planning.coverage import PLANNED, held_ranges
from meshnet_tracker.planning.draft import Draft, drop, load
from meshnet_tracker.planning.holders import moves
from meshnet_tracker.planning.pins import Binding
from meshnet_tracker.planning.snapshot import HeldShard, Pin, RebalanceDirective


def obey(draft: Draft) -> None:
    """Order every bound Worker that has nothing in flight what comes next for it."""
    for worker_id, binding in sorted(draft.bound.items()):
        if any(map(moves, draft.workers[worker_id].held)):
            continue
        order = _load(draft, worker_id, binding.pin) if binding.pin else None
        if order is not None:
            draft.issue(order)
        else:
            for each in _drops(draft, worker_id, binding):
                draft.issue(each)


def _load(draft: Draft, worker_id: WorkerId, pin: Pin) -> RebalanceDirective | None:
    """Load what is missing of the pin, one piece at a time, as far as there is room."""
    if worker_id in draft.cooling:
        return None
    runs = held_ranges(draft.workers[worker_id], pin.variant, PLANNED)
    if len(runs) > 1 or (runs and not runs[0].touches(pin.shard_range)):
        return None
    pieces = pin.shard_range.minus(runs[0]) if runs else (pin.shard_range,)
    sizes = draft.states[pin.variant].sizes
    for piece in pieces:
        if sizes.range_bytes(piece) <= draft.rooms[worker_id]:
            why = f"an Operator pinned it to Layers {pin.shard_range} of {pin.variant}"
            return load(worker_id, pin.variant, piece, DirectiveReason.OPERATOR, why)
    return None


def _drops(draft: Draft, worker_id: WorkerId, binding: Binding) -> Iterator[RebalanceDirective]:
    """Drop what it is not to keep, where each Layer of it is ready on another Worker."""
    why = (
        "an Operator pinned it to other Layers, and others serve these"
        if binding.pin
        else "an Operator empties it, and others serve these Layers"
    )
    for shard in draft.workers[worker_id].held:
        for piece in _excess(shard, binding):
            state = draft.states.get(shard.variant)
            if state is None:
                continue  # Served no more: whoever retires Variants drops it.
            end = piece.shard_range.end
            counts = state.ready[piece.shard_range.start : end]
            if end <= len(state.ready) and min(counts) > 1:
                reason = DirectiveReason.OPERATOR
                yield drop(worker_id, shard.variant, piece.shard_range, reason, why)


def _excess(shard: HeldShard, binding: Binding) -> list[HeldShard]:
    pin = binding.pin
    if pin is None or pin.variant != shard.variant:
        return [shard]
    pieces = shard.shard_range.minus(pin.shard_range)
    return [replace(shard, shard_range=piece) for piece in pieces]
