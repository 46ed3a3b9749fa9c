"""Long loads are ordered a piece at a time, above all those that nobody waits for.

A Worker that loads cannot be told anything else, and what it loads serves nobody until all of it
is there: a second copy that takes ten minutes would hold up the mending of a gap for as long. So
it loads what takes half a minute, which is ready then, and goes on in a later pass.
"""

from collections.abc import Iterator
from dataclasses import replace

from meshnet_common.protocol.messages import DirectiveKind, DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.coverage import PLANNED, held_ranges
from meshnet_tracker.planning.draft import Draft, load
from meshnet_tracker.planning.flow import changed_flows, is_better
from meshnet_tracker.planning.holders import Holder, VariantDraft
from meshnet_tracker.planning.moves import MOST_HOLDERS
from meshnet_tracker.planning.replan import is_searched
from meshnet_tracker.planning.replicas import Need
from meshnet_tracker.planning.snapshot import RebalanceDirective, WorkerView

PIECE_SECONDS = 30.0
GAP_SECONDS = 75.0
"""Where a gap is mended each piece costs a probe, and somebody may come who is quicker."""


def in_pieces(draft: Draft, directive: RebalanceDirective) -> RebalanceDirective:
    """Shorten a load to what is there soon, where lines are measured."""
    worker = draft.workers[directive.worker_id]
    state = draft.states.get(directive.variant)
    if state is None or not _may_be_cut(state, directive):
        return directive
    seconds = GAP_SECONDS if directive.reason is DirectiveReason.GAP else PIECE_SECONDS
    most = layers_soon(worker, state.sizes, seconds)
    whole = directive.shard_range
    if most is None or len(whole) <= most:
        return directive
    runs = held_ranges(worker, directive.variant, PLANNED)
    if any(run.start == whole.end for run in runs):
        part = ShardRange(whole.end - most, whole.end)
    else:
        part = ShardRange(whole.start, whole.start + most)
    return replace(directive, shard_range=part)


def _may_be_cut(state: VariantDraft, directive: RebalanceDirective) -> bool:
    """Whether who loads a first piece is told the rest later.

    What nobody holds is placed as a whole, and begins as such.
    """
    if directive.kind is DirectiveKind.DROP_SHARD or directive.reason is DirectiveReason.OPERATOR:
        return False
    if directive.reason is DirectiveReason.GAP:
        return bool(state.holders)
    return _goes_on(state)


def _goes_on(state: VariantDraft) -> bool:
    """Whether `widen` looks at who loaded a first piece."""
    return not is_searched(state) and len(state.holders) <= MOST_HOLDERS


def layers_soon(
    worker: WorkerView, sizes: LayerSizes, seconds: float = PIECE_SECONDS
) -> int | None:
    """Count the Layers that are one piece; None where the line was never measured."""
    speed = worker.download_bytes_per_sec
    return max(1, int(seconds * speed / sizes.bytes_per_layer)) if speed > 0 else None


def widen(draft: Draft, state: VariantDraft) -> None:
    """Let Workers with room load the next piece, where that makes the flow better."""
    drops = DirectiveKind.DROP_SHARD
    if state.gaps or not _goes_on(state) or not any(map(_has_line, state.holders)):
        return
    if any(d.variant == state.key and d.kind is drops for d in draft.directives):
        return
    flows = Need(draft, state).flows
    for holder in state.holders:
        worker_id = holder.worker_id
        if not holder.may_load or worker_id in draft.busy or worker_id not in draft.steady:
            continue
        if draft.rooms[worker_id] < state.sizes.smallest_layer_bytes:
            continue
        best = _best_piece(draft, state, holder, flows)
        if best is not None:
            why = f"the next piece of {state.key} that it has room for"
            draft.issue(load(worker_id, state.key, best, DirectiveReason.REDUNDANCY, why))
            flows = _widened(flows, holder, best)


def _best_piece(
    draft: Draft, state: VariantDraft, holder: Holder, flows: list[float]
) -> ShardRange | None:
    best, after = None, flows
    for piece in _pieces(draft, state, holder):
        widened = _widened(flows, holder, piece)
        if is_better(widened, after):
            best, after = piece, widened
    return best


def _widened(flows: list[float], holder: Holder, piece: ShardRange) -> list[float]:
    return changed_flows(flows, [(holder.run, holder.run.union(piece), holder.worker.speed)])


def _has_line(holder: Holder) -> bool:
    return holder.worker.download_bytes_per_sec > 0


def _pieces(draft: Draft, state: VariantDraft, holder: Holder) -> Iterator[ShardRange]:
    sizes, run = state.sizes, holder.run
    most = layers_soon(holder.worker, sizes)
    if most is None:
        return
    room = sizes.range_bytes(run) + draft.rooms[holder.worker_id]
    budget = min(holder.budget_bytes, room)
    end = sizes.end_within(run.start, min(run.end + most, sizes.layer_count), budget)
    if end > run.end:
        yield ShardRange(run.end, end)
    if not holder.worker.starts_at_zero:
        start = sizes.start_within(run.end, max(0, run.start - most), budget)
        if start < run.start:
            yield ShardRange(start, run.start)
