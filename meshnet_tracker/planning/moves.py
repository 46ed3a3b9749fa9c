"""Boundary moves: wider runs for faster Workers, once every Layer is covered.

A move is two passes, make before break: the faster Worker loads Layers of the slower one, and
when it is ready the overlap is trimmed. Neither step is remembered: each is taken because it
makes the flow better (`flow.is_better`), so the steps end, and never turn back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from meshnet_common.protocol.messages import DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.chains import Chain, chains_of
from meshnet_tracker.planning.draft import Draft, drop, load
from meshnet_tracker.planning.flow import changed_flows, is_better, layer_flows
from meshnet_tracker.planning.holders import SAFE_REPLICAS, Holder, VariantDraft
from meshnet_tracker.planning.orders import Candidate
from meshnet_tracker.planning.shares import balanced_counts
from meshnet_tracker.planning.snapshot import RebalanceDirective

TRIM_GAIN = 0.1
"""What is on two Workers stays so, if the flow grows by no more when one drops it."""
MOST_HOLDERS = 200
"""With more Workers that hold a Variant one boundary is too small a part of it for a load."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A directive, and the flows of the placement that it leads to."""

    directive: RebalanceDirective
    flows: list[float]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two Workers of a chain that follow each other, and where the whole chain wants them to meet.

    There is no such `target` if the chain's memory is too short for a careful count.
    """

    low: Holder
    high: Holder
    target: int | None

    def boundaries(self, allowed: range) -> tuple[int, ...]:
        """Give where they should meet: as near to the target as allowed, else what suits the two.

        The target comes first because it need not be touched again when others move theirs.
        """
        for_two = min(allowed, key=self._slower_turn)
        if self.target is None:
            return (for_two,)
        return min(max(self.target, allowed[0]), allowed[-1]), for_two

    def split_at(self, boundary: int) -> tuple[tuple[Holder, ShardRange], ...]:
        low_kept = ShardRange(self.low.run.start, boundary)
        high_kept = ShardRange(boundary, self.high.run.end)
        return (self.low, low_kept), (self.high, high_kept)

    def _slower_turn(self, boundary: int) -> tuple[float, int, int]:
        """Return the longer turn of the two; among equals the least moved boundary is smaller."""
        low_turn = (boundary - self.low.run.start) / self.low.worker.speed
        high_turn = (self.high.run.end - boundary) / self.high.worker.speed
        return max(low_turn, high_turn), abs(boundary - self.low.run.end), boundary


def next_trim(draft: Draft, state: VariantDraft) -> RebalanceDirective | None:
    """Find the drop of overlapping Layers that betters the flow most, if one does."""
    flows = _flows(state)
    steps = [
        step
        for chain in _chains(draft, state)
        for pair in _pairs(state.sizes, chain)
        if (step := _trim(state, flows, pair)) is not None
    ]
    return _best(steps)


def next_move(draft: Draft, state: VariantDraft) -> RebalanceDirective | None:
    """Find the load that starts the best boundary move, if it pays more than the policy asks."""
    flows = _flows(state)
    wanted = min(flows) * (1 + draft.policy.move_gain)
    if sum(holder.worker.speed for holder in state.holders) / state.sizes.layer_count <= wanted:
        return None  # Not even the bound that no placement passes would be gain enough.
    steps = [
        step
        for chain in _chains(draft, state)
        if min(_balanced_flows(state.sizes, flows, chain)) > wanted
        for pair in _pairs(state.sizes, chain)
        if (step := _move(state, flows, pair)) is not None
    ]
    return _best(steps)


def _flows(state: VariantDraft) -> list[float]:
    runs = ((holder.run, holder.worker.speed) for holder in state.holders)
    return layer_flows(runs, state.sizes.layer_count)


def _chains(draft: Draft, state: VariantDraft) -> list[Chain]:
    if len(state.holders) > MOST_HOLDERS:
        return []
    movable = (h for h in state.holders if h.settled and h.worker_id not in draft.busy)
    return chains_of(movable, state.sizes.layer_count)


def _best(steps: Iterable[_Step]) -> RebalanceDirective | None:
    best: _Step | None = None
    for step in steps:
        if best is None or is_better(step.flows, best.flows):
            best = step
    return None if best is None else best.directive


def _pairs(sizes: LayerSizes, chain: Chain) -> list[_Pair]:
    counts = _balanced_counts(sizes, chain)
    if counts is None:
        return [_Pair(low, high, None) for low, high in pairwise(chain)]
    targets = accumulate(counts[:-1])
    return [_Pair(*pair, target) for pair, target in zip(pairwise(chain), targets, strict=True)]


def _balanced_counts(sizes: LayerSizes, chain: Chain) -> list[int] | None:
    candidates = [Candidate(h.worker_id, h.budget_bytes, h.worker.speed) for h in chain]
    return balanced_counts(sizes, sizes.whole, candidates)


def _trim(state: VariantDraft, flows: Sequence[float], pair: _Pair) -> _Step | None:
    """Drop what one of two overlapping Workers holds behind their boundary."""
    low, high = pair.low, pair.high
    if low.run.overlap(high.run) is None:
        return None
    first = max(high.run.start, low.run.start + 1)
    last = min(low.run.end, high.run.end - 1)
    steps = (
        step
        for boundary in pair.boundaries(range(first, last + 1))
        for holder, kept in pair.split_at(boundary)
        if (step := _drop_to(state, flows, holder, kept)) is not None
    )
    return next(steps, None)


def _drop_to(
    state: VariantDraft, flows: Sequence[float], holder: Holder, kept: ShardRange
) -> _Step | None:
    trimmed = changed_flows(flows, [(holder.run, kept, holder.worker.speed)])
    dropped = holder.run.minus(kept)
    if not dropped or not is_better(trimmed, flows) or not _stays_safe(state, dropped[0]):
        return None
    if min(trimmed) <= min(flows) * (1 + TRIM_GAIN) and not _is_spare(state, dropped[0]):
        return None
    why = f"others serve these Layers too, and it is faster at {kept} alone"
    order = drop(holder.worker_id, state.key, dropped[0], DirectiveReason.SPEED, why)
    return _Step(order, trimmed)


def _is_spare(state: VariantDraft, dropped: ShardRange) -> bool:
    """Whether each of these Layers stays on enough Workers for one to be lost."""
    return min(state.planned[dropped.start : dropped.end]) > SAFE_REPLICAS


def _stays_safe(state: VariantDraft, dropped: ShardRange) -> bool:
    """Whether the thinnest Layer is on as many Workers as before, or on more than a loss takes."""
    left = min(state.planned[dropped.start : dropped.end]) - 1
    return left >= min(SAFE_REPLICAS, *state.planned)


def _move(state: VariantDraft, flows: Sequence[float], pair: _Pair) -> _Step | None:
    """Move the boundary between two Workers that lie side by side, as far as memory allows."""
    if pair.low.run.end != pair.high.run.start:
        return None
    steps = (
        step
        for boundary in pair.boundaries(_reachable(state.sizes, pair.low, pair.high))
        if (step := _load_to(state, flows, pair, boundary)) is not None
    )
    return next(steps, None)


def _load_to(
    state: VariantDraft, flows: Sequence[float], pair: _Pair, boundary: int
) -> _Step | None:
    """Load what is to change hands; None unless both steps of the move better the flow."""
    now = pair.low.run.end
    if boundary == now:
        return None
    gainer = pair.low if boundary > now else pair.high
    gained = ShardRange(min(now, boundary), max(now, boundary))
    loaded = changed_flows(flows, [(gainer.run, gainer.run.union(gained), gainer.worker.speed)])
    changes = [(holder.run, kept, holder.worker.speed) for holder, kept in pair.split_at(boundary)]
    moved = changed_flows(flows, changes)
    if not is_better(loaded, flows) or not is_better(moved, loaded):
        return None
    flow, before = min(moved), min(flows)
    why = f"the Worker beside it is slower: {flow:.4g} tokens/s instead of {before:.4g} pass here"
    return _Step(load(gainer.worker_id, state.key, gained, DirectiveReason.SPEED, why), moved)


def _reachable(sizes: LayerSizes, low: Holder, high: Holder) -> range:
    """List where the boundary may go: no further than memory allows, and leaving a Layer to each.

    Where it is now is among them.
    """
    first = last = low.run.end
    if high.may_load and not high.worker.starts_at_zero:
        fits = sizes.start_within(high.run.end, 0, high.budget_bytes)
        first = min(first, max(fits, low.run.start + 1))
    if low.may_load:
        fits = sizes.end_within(low.run.start, sizes.layer_count, low.budget_bytes)
        last = max(last, min(fits, high.run.end - 1))
    return range(first, last + 1)


def _balanced_flows(sizes: LayerSizes, flows: Sequence[float], chain: Chain) -> list[float]:
    """Return the flows if this chain had its best boundaries; as they are where none are found."""
    counts = _balanced_counts(sizes, chain)
    if counts is None:
        return list(flows)
    changes: list[tuple[ShardRange, ShardRange | None, float]] = []
    position = 0
    for holder, count in zip(chain, counts, strict=True):
        after = ShardRange(position, position + count) if count else None
        changes.append((holder.run, after, holder.worker.speed))
        position += count
    return changed_flows(flows, changes)
