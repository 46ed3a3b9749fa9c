"""Moving room toward a Coverage Gap when nobody beside it has any left.

Two steps, each of them make before break: a Worker beside the gap drops its far Layers where
others are ready to serve them; failing that, a Worker further away loads Layers of the next one,
so that this one may drop them later. Repeated over passes, room walks to the gap.

    gap [10, 13)    A [0, 5) with room for 3    B [5, 10) without room
    LOAD A [5, 8)   then DROP B [5, 8)          then LOAD B [10, 13)

A Worker with room for everything up to the gap's end simply loads it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveKind
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.holders import Holder


@dataclass(frozen=True, slots=True)
class Facing:
    """A Variant's Layers seen from one side, so that every gap is filled from below.

    From the other side they are counted backwards; `see` turns a range, and turns it back.
    """

    sizes: LayerSizes
    ready: tuple[int, ...]
    mirrored: bool

    @classmethod
    def both(cls, sizes: LayerSizes, ready: Sequence[int]) -> tuple[Self, Self]:
        backwards = cls(sizes.mirrored(), tuple(reversed(ready)), mirrored=True)
        return cls(sizes, tuple(ready), mirrored=False), backwards

    def see(self, shard_range: ShardRange) -> ShardRange:
        if not self.mirrored:
            return shard_range
        layers = self.sizes.layer_count
        return ShardRange(layers - shard_range.end, layers - shard_range.start)

    def may_grow(self, holder: Holder) -> bool:
        """Whether it can load above its run: not backwards, if it is bound to Layer 0."""
        return holder.may_load and not (self.mirrored and holder.worker.starts_at_zero)

    def may_follow(self, holder: Holder) -> bool:
        """Whether it can drop its lower Layers to load above its run."""
        return holder.may_load and not holder.worker.starts_at_zero


@dataclass(frozen=True, slots=True)
class Trim:
    """Dropping `dropped` lets its Worker take `gained` of the gap."""

    holder: Holder
    dropped: ShardRange
    gained: ShardRange


@dataclass(frozen=True, slots=True)
class Push:
    """One step that brings room closer to the gap."""

    holder: Holder
    kind: DirectiveKind
    shard_range: ShardRange

    @property
    def worker_id(self) -> WorkerId:
        return self.holder.worker_id


def best_trim(
    sizes: LayerSizes, ready: Sequence[int], holders: Sequence[Holder], gap: ShardRange
) -> Trim | None:
    """Find the Worker beside the gap that can take most of it for Layers that others serve."""
    trims = [
        trim
        for facing in Facing.both(sizes, ready)
        for holder in holders
        if (trim := _trim(facing, holder, gap)) is not None
    ]
    return max(
        trims, key=lambda trim: (len(trim.gained), -len(trim.dropped), trim.gained), default=None
    )


def next_push(
    sizes: LayerSizes, ready: Sequence[int], holders: Sequence[Holder], gaps: Sequence[ShardRange]
) -> Push | None:
    """Find one load that closes a gap from further away, or brings room one step closer to one.

    Step by step, Layers between two gaps give room to the upper one only, and those behind the
    last gap to that one: with both ways open two pushes could undo each other for ever.
    """
    upward, downward = Facing.both(sizes, ready)
    both_ways = [(facing, gap) for gap in gaps for facing in (upward, downward)]
    one_way = [(upward, gap) for gap in gaps] + [(downward, gap) for gap in gaps[-1:]]
    for search, tries in ((_stretch, both_ways), (_push, one_way)):
        for facing, gap in sorted(tries, key=lambda each: (-len(each[1]), each[1])):
            push = search(facing, holders, facing.see(gap))
            if push is not None:
                return Push(push.holder, push.kind, facing.see(push.shard_range))
    return None


def _trim(facing: Facing, holder: Holder, gap: ShardRange) -> Trim | None:
    run, seen_gap = facing.see(holder.run), facing.see(gap)
    if not facing.may_follow(holder) or run.end != seen_gap.start:
        return None
    dropped, end = _reach(facing, holder, run, seen_gap.end)
    if not dropped:
        return None
    lower = ShardRange(run.start, run.start + dropped)
    return Trim(holder, facing.see(lower), facing.see(ShardRange(run.end, end)))


def _reach(facing: Facing, holder: Holder, run: ShardRange, limit: int) -> tuple[int, int]:
    """Return how many of its lowest Layers it drops to reach furthest, and the end it reaches.

    No Layers at all, if that helps nothing. Never all of them: what is left ties the run together.
    """
    spare = 0
    while spare < len(run) - 1 and facing.ready[run.start + spare] > 1:
        spare += 1
    ends = [
        facing.sizes.end_within(run.start + dropped, limit, holder.budget_bytes)
        for dropped in range(spare + 1)
    ]
    if ends[-1] <= run.end:
        return 0, run.end
    return ends.index(ends[-1]), ends[-1]


def _stretch(facing: Facing, holders: Sequence[Holder], gap: ShardRange) -> Push | None:
    """Let the nearest Worker with room for all Layers up to the gap's end load them."""
    able = [
        (run.end, holder.worker_id, holder)
        for holder in holders
        if facing.may_grow(holder)
        and (run := facing.see(holder.run)).end < gap.start
        and facing.sizes.end_within(run.start, gap.end, holder.budget_bytes) == gap.end
    ]
    if not able:
        return None
    end, _, holder = max(able)
    return Push(holder, DirectiveKind.LOAD_SHARD, ShardRange(end, gap.end))


def _push(facing: Facing, holders: Sequence[Holder], gap: ShardRange) -> Push | None:
    waiting = deque(holder for holder in holders if _could_enter(facing, holder, gap))
    seen = {holder.worker_id for holder in waiting}
    while waiting:
        run = facing.see(waiting.popleft().run)
        for holder in holders:
            if holder.worker_id in seen or not _lies_below(facing.see(holder.run), run):
                continue
            push = _step(facing, holder, gap)
            if push is not None:
                return push
            seen.add(holder.worker_id)
            if facing.may_follow(holder):
                waiting.append(holder)
    return None


def _could_enter(facing: Facing, holder: Holder, gap: ShardRange) -> bool:
    """Whether it lies beside the gap, and would fit into it if it held nothing else."""
    if not facing.may_follow(holder) or facing.see(holder.run).end != gap.start:
        return False
    return facing.sizes.end_within(gap.start, gap.end, holder.budget_bytes) > gap.start


def _lies_below(lower: ShardRange, upper: ShardRange) -> bool:
    return lower.start < upper.start <= lower.end


def _step(facing: Facing, holder: Holder, gap: ShardRange) -> Push | None:
    if not facing.may_grow(holder):
        return None
    run = facing.see(holder.run)
    limit = min(run.end + len(gap), gap.end)
    end = facing.sizes.end_within(run.start, limit, holder.budget_bytes)
    if end > run.end:
        return Push(holder, DirectiveKind.LOAD_SHARD, ShardRange(run.end, end))
    dropped, _ = _reach(facing, holder, run, limit)
    if dropped and facing.may_follow(holder):
        lower = ShardRange(run.start, run.start + dropped)
        return Push(holder, DirectiveKind.DROP_SHARD, lower)
    return None
