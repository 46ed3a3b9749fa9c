"""Filling Coverage Gaps of one Variant, from what is cheapest to what moves most.

Free Workers first, largest fit first; then Workers beside a gap with room to spare; then what
can be had by moving: Workers that are already being emptied, Layers that others serve as well,
and at last whole Workers that are redundant. What is spoken for but cannot be ordered yet counts
as filled, so that nobody else is moved for it; the next passes order it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveKind, DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.draft import Draft, Holder, VariantDraft, drop, load
from meshnet_tracker.planning.orders import Candidate
from meshnet_tracker.planning.placement import fill_range
from meshnet_tracker.planning.pushes import Push, best_trim, next_push
from meshnet_tracker.planning.rearrange import Mover, Step, steps_to_coverage
from meshnet_tracker.planning.snapshot import (
    HeldShard,
    Holding,
    RebalanceDirective,
    VariantKey,
    WorkerView,
)

Order = Callable[[WorkerId, ShardRange], Iterable[RebalanceDirective]]


@dataclass(slots=True)
class GapPlan:
    """What fills the gaps of one Variant: `gaps` is what nothing was found for.

    `used` Workers are spoken for, also those that get no directive yet. `ready` holds the counts
    of each Variant's Layers after the drops in `orders`. One that `falls_short` looks no further,
    though another order of the Workers makes the gaps smaller only.
    """

    draft: Draft
    state: VariantDraft
    gaps: list[ShardRange]
    ready: dict[VariantKey, list[int]]
    orders: list[RebalanceDirective] = field(default_factory=list)
    used: set[WorkerId] = field(default_factory=set)
    falls_short: bool = False

    @property
    def complete(self) -> bool:
        return not self.gaps

    @property
    def covers(self) -> bool:
        """Whether all Layers will be ready once it is carried out, in this and later passes."""
        return self.complete and not self.falls_short

    def unused(self, worker_ids: Iterable[WorkerId]) -> list[WorkerId]:
        return [worker_id for worker_id in worker_ids if worker_id not in self.used]

    def idle_holders(self) -> list[Holder]:
        """Give those who hold a part and may still be ordered something in this pass."""
        taken = self.used | self.draft.busy
        return [h for h in self.state.holders if h.settled and h.worker_id not in taken]


def plan_gaps(draft: Draft, state: VariantDraft) -> GapPlan:
    """Plan for all gaps of a Variant; issues nothing."""
    plan = GapPlan(
        draft, state, list(state.gaps), {each.key: list(each.ready) for each in draft.variants}
    )
    _fill_with(plan, draft.free, lambda worker_id, gap: [_load(plan, worker_id, gap)])
    _extend(plan)
    _fill_with(plan, draft.emptying, lambda _worker_id, _gap: [])
    _trim(plan)
    _move_redundant(plan, [state.key])
    _borrow(plan)
    if plan.gaps and not _rearrange(plan) and not plan.orders and not state.in_flight:
        _push(plan)
    return plan


def _load(plan: GapPlan, worker_id: WorkerId, shard_range: ShardRange) -> RebalanceDirective:
    return load(worker_id, plan.state.key, shard_range, DirectiveReason.GAP)


def _longest_first(gaps: Iterable[ShardRange]) -> list[ShardRange]:
    return sorted(gaps, key=lambda gap: (-len(gap), gap))


def _fill_with(plan: GapPlan, worker_ids: Iterable[WorkerId], order: Order) -> None:
    for gap in _longest_first(plan.gaps):
        candidates = plan.draft.candidates(plan.unused(worker_ids), plan.state.key)
        for worker_id, shard_range in fill_range(plan.state.sizes, gap, candidates).items():
            plan.used.add(worker_id)
            plan.orders.extend(order(worker_id, shard_range))
            _close(plan, shard_range)


def _close(plan: GapPlan, shard_range: ShardRange) -> None:
    plan.gaps = [piece for gap in plan.gaps for piece in gap.minus(shard_range)]


def _extend(plan: GapPlan) -> None:
    """Let Workers beside a gap take what they have room for, most room first."""
    runs = {h.worker_id: h.run for h in plan.state.holders if not h.barred}
    orderable = {holder.worker_id for holder in plan.idle_holders()}
    while (best := _best_extension(plan, runs)) is not None:
        worker_id, gained = best
        runs[worker_id] = runs[worker_id].union(gained)
        _close(plan, gained)
        plan.used.add(worker_id)
        if worker_id in orderable:
            # One directive for each Worker; a gap on its other side is left to the next pass.
            orderable.remove(worker_id)
            plan.orders.append(_load(plan, worker_id, gained))


def _best_extension(
    plan: GapPlan, runs: dict[WorkerId, ShardRange]
) -> tuple[WorkerId, ShardRange] | None:
    extensions = [
        (len(gained), holder.worker.speed, holder.worker_id, gained)
        for gap in plan.gaps
        for holder in plan.state.holders
        if holder.worker_id in runs
        and (gained := _extension(plan, holder, runs[holder.worker_id], gap)) is not None
    ]
    if not extensions:
        return None
    _, _, worker_id, gained = max(extensions)
    return worker_id, gained


def _extension(
    plan: GapPlan, holder: Holder, run: ShardRange, gap: ShardRange
) -> ShardRange | None:
    sizes, budget = plan.state.sizes, holder.budget_bytes
    start = end = run.start
    if run.end == gap.start:
        start, end = run.end, sizes.end_within(run.start, gap.end, budget)
    elif run.start == gap.end and not holder.worker.starts_at_zero:
        start = sizes.start_within(run.end, gap.start, budget)
    return ShardRange(start, end) if start < end else None


def _trim(plan: GapPlan) -> None:
    """Let Workers beside a gap drop far Layers that others serve, to take a part of it next."""
    key, ready = plan.state.key, plan.ready[plan.state.key]
    while plan.gaps:
        trims = [
            trim
            for gap in plan.gaps
            if (trim := best_trim(plan.state.sizes, ready, plan.idle_holders(), gap)) is not None
        ]
        if not trims:
            return
        trim = max(trims, key=lambda trim: (len(trim.gained), trim.holder.worker_id))
        plan.orders.append(drop(trim.holder.worker_id, key, trim.dropped, DirectiveReason.GAP))
        plan.used.add(trim.holder.worker_id)
        for layer in trim.dropped.layers:
            ready[layer] -= 1
        _close(plan, trim.gained)


def _move_redundant(plan: GapPlan, keys: Iterable[VariantKey]) -> None:
    """Empty Workers whose every Layer others are ready to serve; they load in later passes."""
    if plan.gaps:
        movable = _redundant(plan, set(keys))
        _fill_with(plan, movable, lambda worker_id, _gap: _drops(plan, worker_id))


def _borrow(plan: GapPlan) -> None:
    """Empty redundant Workers of other Variants too, but only if that completes this one."""
    gaps, used, orders = list(plan.gaps), set(plan.used), list(plan.orders)
    ready = {key: list(counts) for key, counts in plan.ready.items()}
    _move_redundant(plan, plan.ready)
    if plan.gaps:
        plan.gaps, plan.used, plan.orders, plan.ready = gaps, used, orders, ready


def _redundant(plan: GapPlan, keys: set[VariantKey]) -> list[WorkerId]:
    """List Workers that could all be emptied at once, largest Budget first."""
    ready = {key: list(plan.ready[key]) for key in keys}
    movable = []
    taken = plan.used | plan.draft.busy | plan.draft.cooling
    for worker in sorted(
        plan.draft.workers.values(), key=lambda worker: (-worker.vram_bytes, worker.worker_id)
    ):
        if worker.worker_id in taken or not _can_help(plan, worker):
            continue
        if worker.held and all(_is_spare(shard, ready) for shard in worker.held):
            movable.append(worker.worker_id)
            for shard in worker.held:
                _forget(ready[shard.variant], shard)
    return movable


def _can_help(plan: GapPlan, worker: WorkerView) -> bool:
    candidates = plan.draft.candidates([worker.worker_id], plan.state.key)
    return any(fill_range(plan.state.sizes, gap, candidates) for gap in plan.gaps)


def _is_spare(shard: HeldShard, ready: dict[VariantKey, list[int]]) -> bool:
    if shard.holding is not Holding.READY or shard.variant not in ready:
        return False
    counts = ready[shard.variant]
    end = shard.shard_range.end
    return end <= len(counts) and all(counts[layer] > 1 for layer in shard.shard_range.layers)


def _forget(counts: list[int], shard: HeldShard) -> None:
    for layer in shard.shard_range.layers:
        counts[layer] -= 1


def _drops(plan: GapPlan, worker_id: WorkerId) -> list[RebalanceDirective]:
    held = plan.draft.workers[worker_id].held
    for shard in held:
        _forget(plan.ready[shard.variant], shard)
    return [drop(worker_id, s.variant, s.shard_range, DirectiveReason.GAP) for s in held]


def _rearrange(plan: GapPlan) -> bool:
    """Take another order of Workers instead, if that covers everything; one step at a time.

    While something is in flight nothing is ordered, so that nobody leaves the way.
    """
    draft, state = plan.draft, plan.state
    if not state.started:
        return False
    movers = _movers(draft, state)
    steps = steps_to_coverage(state.sizes, movers, state.planned, sum(map(len, plan.gaps)))
    if steps is None:
        return False
    placed = fill_range(state.sizes, state.sizes.whole, [mover.candidate for mover in movers])
    plan.falls_short = sum(map(len, placed.values())) < state.sizes.layer_count
    plan.gaps = []
    plan.used = {mover.worker_id for mover in movers}
    plan.orders = [] if state.in_flight else [_order(plan, step) for step in steps]
    return True


def _movers(draft: Draft, state: VariantDraft) -> list[Mover]:
    able = [h for h in state.holders if not h.barred and h.worker_id not in draft.busy]
    holding = [
        Mover(
            Candidate(h.worker_id, h.budget_bytes, h.worker.speed, h.worker.starts_at_zero), h.run
        )
        for h in able
    ]
    empty = draft.candidates(draft.free | draft.emptying, state.key)
    return [*holding, *(Mover(candidate, None) for candidate in empty)]


def _order(plan: GapPlan, step: Step | Push) -> RebalanceDirective:
    make = load if step.kind is DirectiveKind.LOAD_SHARD else drop
    return make(step.worker_id, plan.state.key, step.shard_range, DirectiveReason.GAP)


def _push(plan: GapPlan) -> None:
    """Bring room one step closer to a gap; alone, since the next step needs this one done."""
    key = plan.state.key
    push = next_push(plan.state.sizes, plan.ready[key], plan.idle_holders(), sorted(plan.gaps))
    if push is not None:
        plan.orders.append(_order(plan, push))
