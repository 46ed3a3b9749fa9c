"""Filling the Coverage Gaps of one Variant without taking anything away from anybody.

Free Workers, largest fit first; then Workers beside a gap with room to spare; then those that are
being emptied, and the room that is left beside other Variants. What is spoken for but cannot be
ordered yet counts as filled, so that nobody else is moved for it; the next passes order it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.draft import Draft, load
from meshnet_tracker.planning.holders import Holder, VariantDraft
from meshnet_tracker.planning.orders import Candidate, Placement
from meshnet_tracker.planning.placement import fill_range
from meshnet_tracker.planning.snapshot import RebalanceDirective, VariantKey

Counts = dict[VariantKey, list[int]]
Saved = tuple[
    list[ShardRange], set[WorkerId], list[RebalanceDirective], Counts, dict[WorkerId, int]
]

SPARE_CANDIDATES = 8


@dataclass(slots=True)
class GapPlan:
    """What fills the gaps of one Variant: `gaps` is what nothing was found for.

    `used` Workers are spoken for, also those that get no directive yet; `promised` are the bytes
    of those that hold something else as well. `ready` holds the counts of each Variant's Layers
    after the drops in `orders`. One that `falls_short` looks no further, though another order of
    the Workers makes the gaps smaller only.
    """

    draft: Draft
    state: VariantDraft
    gaps: list[ShardRange]
    ready: Counts
    orders: list[RebalanceDirective] = field(default_factory=list)
    used: set[WorkerId] = field(default_factory=set)
    promised: dict[WorkerId, int] = field(default_factory=dict)
    falls_short: bool = False
    reason: DirectiveReason = DirectiveReason.GAP
    quick: bool = False
    """Whether it is spread over lines, so that it should not be placed otherwise."""

    @classmethod
    def of(cls, draft: Draft, state: VariantDraft) -> "GapPlan":
        ready = {each.key: list(each.ready) for each in draft.variants}
        return cls(draft, state, list(state.gaps), ready)

    @property
    def complete(self) -> bool:
        return not self.gaps

    @property
    def covers(self) -> bool:
        """Whether all Layers will be ready once it is carried out, in this and later passes."""
        return self.complete and not self.falls_short

    def close(self, shard_range: ShardRange) -> None:
        self.gaps = [piece for gap in self.gaps for piece in gap.minus(shard_range)]

    def idle_holders(self) -> list[Holder]:
        """Give those who hold a part and may still be ordered something in this pass."""
        taken = self.used | self.draft.busy
        return [
            self.within_room(holder)
            for holder in self.state.holders
            if holder.settled and holder.worker_id not in taken
        ]

    def within_room(self, holder: Holder) -> Holder:
        """Show it with no more than what other Variants of this pass leave it."""
        room = self.state.sizes.range_bytes(holder.run) + self.draft.rooms[holder.worker_id]
        return replace(holder, budget_bytes=room) if room < holder.budget_bytes else holder

    def saved(self) -> Saved:
        ready = {key: list(counts) for key, counts in self.ready.items()}
        return list(self.gaps), set(self.used), list(self.orders), ready, dict(self.promised)

    def restore(self, saved: Saved) -> None:
        self.gaps, self.used, self.orders, self.ready, self.promised = saved

    def load(self, worker_id: WorkerId, shard_range: ShardRange) -> RebalanceDirective:
        """Order these Layers; the sentence says what they are for."""
        few = "nobody serves" if self.reason is DirectiveReason.GAP else "one Worker alone serves"
        why = f"{few} Layers {shard_range} of {self.state.key}, and it has room for them"
        return load(worker_id, self.state.key, shard_range, self.reason, why)

    def load_beside(self, worker_id: WorkerId, shard_range: ShardRange) -> None:
        """Load into room beside other Variants, now or when nothing is in flight there."""
        if worker_id in self.draft.steady:
            self.orders.append(self.load(worker_id, shard_range))
        else:
            self.promised[worker_id] = self.state.sizes.range_bytes(shard_range)

    def reserve(self) -> None:
        """Speak for the Workers in the pass, so that no other Variant counts on them."""
        self.draft.reserve(self.used)
        for worker_id, size in self.promised.items():
            self.draft.rooms[worker_id] -= size

    def issue(self) -> None:
        for directive in self.orders:
            self.draft.issue(directive)


def longest_first(gaps: Iterable[ShardRange]) -> list[ShardRange]:
    """Order gaps: the longest is what keeps a Variant away longest."""
    return sorted(gaps, key=lambda gap: (-len(gap), gap))


def fill_with_free(plan: GapPlan) -> None:
    """Order Workers with empty hands to load the gaps."""
    for gap in longest_first(plan.gaps):
        for worker_id, shard_range in _placed(plan, gap, plan.draft.free).items():
            plan.used.add(worker_id)
            plan.orders.append(plan.load(worker_id, shard_range))
            plan.close(shard_range)


def wait_for_emptying(plan: GapPlan) -> None:
    """Count on Workers that are about to have empty hands."""
    for gap in longest_first(plan.gaps):
        for worker_id, shard_range in _placed(plan, gap, plan.draft.emptying).items():
            plan.used.add(worker_id)
            plan.close(shard_range)


def share_rooms_now(plan: GapPlan) -> None:
    """Share rooms, if that closes all gaps with Workers that have nothing in flight.

    What drains elsewhere may take minutes, in which the Variant would stay uncovered.
    """
    before = plan.saved()
    _share(plan, (each for each in _roomy(plan) if each.worker_id in plan.draft.steady))
    if plan.gaps:
        plan.restore(before)


def share_rooms(plan: GapPlan) -> None:
    """Let Workers that serve other Variants take what fits beside these."""
    _share(plan, _roomy(plan))


def _roomy(plan: GapPlan) -> Iterable[Candidate]:
    return plan.draft.roomy(plan.state) if plan.gaps else ()


def _share(plan: GapPlan, those: Iterable[Candidate]) -> None:
    roomy = list(those)
    for gap in longest_first(plan.gaps):
        candidates = [each for each in roomy if each.worker_id not in plan.used]
        for worker_id, shard_range in fill_range(plan.state.sizes, gap, candidates).items():
            plan.used.add(worker_id)
            plan.close(shard_range)
            plan.load_beside(worker_id, shard_range)


def extend(plan: GapPlan) -> None:
    """Let Workers beside a gap take what they have room for, most room first."""
    if not plan.gaps:
        return
    edges = _Edges(plan)
    orderable = {holder.worker_id for holder in plan.idle_holders()}
    while (best := edges.best_extension(plan.gaps)) is not None:
        worker_id, gained = best
        edges.move(worker_id, gained)
        plan.close(gained)
        plan.used.add(worker_id)
        if worker_id in orderable:
            # One directive for each Worker; a gap on its other side is left to the next pass.
            orderable.remove(worker_id)
            plan.orders.append(plan.load(worker_id, gained))
        else:
            size = plan.state.sizes.range_bytes(gained)
            plan.promised[worker_id] = plan.promised.get(worker_id, 0) + size


class _Edges:
    """Whose run ends, and whose begins, beside a gap."""

    def __init__(self, plan: GapPlan) -> None:
        self.sizes = plan.state.sizes
        self.holders: dict[WorkerId, Holder] = {}
        self.budgets: dict[WorkerId, int] = {}
        self.runs: dict[WorkerId, ShardRange] = {}
        self.ending: dict[int, set[WorkerId]] = defaultdict(set)
        self.beginning: dict[int, set[WorkerId]] = defaultdict(set)
        for holder in plan.state.holders:
            if not holder.barred and holder.worker_id not in plan.used:
                room = self.sizes.range_bytes(holder.run) + plan.draft.rooms[holder.worker_id]
                self.holders[holder.worker_id] = holder
                self.budgets[holder.worker_id] = min(holder.budget_bytes, room)
                self._put(holder.worker_id, holder.run)

    def best_extension(self, gaps: Sequence[ShardRange]) -> tuple[WorkerId, ShardRange] | None:
        best: tuple[int, float, WorkerId, ShardRange] | None = None
        for gap in gaps:
            for worker_id in self.ending[gap.start] | self.beginning[gap.end]:
                gained = self._extension(worker_id, gap)
                if gained is not None:
                    speed = self.holders[worker_id].worker.speed
                    offer = (len(gained), speed, worker_id, gained)
                    best = offer if best is None else max(best, offer)
        return None if best is None else best[2:]

    def move(self, worker_id: WorkerId, gained: ShardRange) -> None:
        run = self.runs[worker_id]
        self.ending[run.end].discard(worker_id)
        self.beginning[run.start].discard(worker_id)
        self._put(worker_id, run.union(gained))

    def _put(self, worker_id: WorkerId, run: ShardRange) -> None:
        self.runs[worker_id] = run
        self.ending[run.end].add(worker_id)
        self.beginning[run.start].add(worker_id)

    def _extension(self, worker_id: WorkerId, gap: ShardRange) -> ShardRange | None:
        run, budget = self.runs[worker_id], self.budgets[worker_id]
        start = end = run.start
        if run.end == gap.start:
            start, end = run.end, self.sizes.end_within(run.start, gap.end, budget)
        elif not self.holders[worker_id].worker.starts_at_zero:
            start = self.sizes.start_within(run.end, gap.start, budget)
        return ShardRange(start, end) if start < end else None


def _placed(plan: GapPlan, gap: ShardRange, worker_ids: Collection[WorkerId]) -> Placement:
    """Place a gap on the largest of these; on all of them, if the largest alone are too few."""
    left = [each for each in worker_ids if each not in plan.used] if plan.used else worker_ids
    if not left:
        return {}
    few = 2 * len(gap) + SPARE_CANDIDATES
    sizes, key = plan.state.sizes, plan.state.key
    candidates = _named(plan.draft.largest_of(set(left), key, few))
    placed = fill_range(sizes, gap, candidates)
    if sum(map(len, placed.values())) == len(gap) or len(left) <= few:
        return placed
    return fill_range(sizes, gap, plan.draft.candidates(left, key))


def _named(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda each: each.worker_id)
