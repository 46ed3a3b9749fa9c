"""What one planning pass knows and has decided so far, on top of the Mesh Snapshot.

The pass works on values of its own: counts of each Layer, who holds what, who is free. Every
directive goes through `Draft.issue`, which keeps them true, so that later rules see earlier ones.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveKind, DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes, usable_bytes
from meshnet_tracker.planning.holders import Reading, VariantDraft, moves, variant_drafts
from meshnet_tracker.planning.localities import UNKNOWN, localities_of
from meshnet_tracker.planning.orders import Candidate
from meshnet_tracker.planning.pins import Binding, bindings_of
from meshnet_tracker.planning.snapshot import (
    Holding,
    MeshSnapshot,
    PlannerPolicy,
    RebalanceDirective,
    VariantKey,
    WorkerView,
)


@dataclass(slots=True)
class Draft:
    """A planning pass; `free` hold nothing, `emptying` only what they are about to drop.

    `rooms` are the bytes that each Worker has left, once what drains there is gone and what was
    ordered is loaded; the `steady` have nothing in flight. The `bound` serve what an Operator says,
    so no rule but `pins.py` orders them anything, or counts on what they have to give up.
    """

    policy: PlannerPolicy
    variants: tuple[VariantDraft, ...]
    workers: Mapping[WorkerId, WorkerView]
    largest: tuple[Candidate, ...]
    rooms: dict[WorkerId, int]
    steady: set[WorkerId]
    free: set[WorkerId]
    emptying: set[WorkerId]
    cooling: frozenset[WorkerId]
    bound: Mapping[WorkerId, Binding]
    demand: Mapping[VariantKey, float]
    localities: Mapping[WorkerId, str]
    busy: set[WorkerId] = field(default_factory=set)
    directives: list[RebalanceDirective] = field(default_factory=list)
    states: dict[VariantKey, VariantDraft] = field(default_factory=dict)
    ranks: dict[WorkerId, int] = field(default_factory=dict)
    newly_held: list[WorkerId] = field(default_factory=list)
    ordered_bytes: dict[WorkerId, int] = field(default_factory=dict)
    holding: tuple[WorkerId, ...] | None = None
    loose: tuple[WorkerId, ...] | None = None

    @classmethod
    def of(cls, snapshot: MeshSnapshot, policy: PlannerPolicy, now: float) -> Self:
        # Sorted, so that the order of the input changes nothing, not even a sum of floats.
        # Who is leaving is told nothing more, and nothing is expected of it.
        staying = (worker for worker in snapshot.workers if not worker.leaving)
        workers = {w.worker_id: w for w in sorted(staying, key=lambda w: w.worker_id)}
        cooling = frozenset(w.worker_id for w in workers.values() if w.cooling_until > now)
        sizes = {key: LayerSizes.of(variant) for key, variant in snapshot.variants()}
        bindings = bindings_of(snapshot, workers, sizes, policy)
        usual = [w for w in workers.values() if w.worker_id not in bindings]
        able = [w for w in usual if w.worker_id not in cooling]
        reading = Reading(policy, sizes, cooling, bindings)
        variants = variant_drafts(serving_order(snapshot), workers.values(), reading)
        largest = _largest_first(usual, policy)
        return cls(
            policy=policy,
            variants=variants,
            workers=workers,
            largest=largest,
            rooms={w.worker_id: reading.room(w) for w in workers.values()},
            steady={w.worker_id for w in able if not any(map(moves, w.held))},
            free={w.worker_id for w in able if not w.held},
            emptying={w.worker_id for w in able if w.held and _only_drains(w)},
            cooling=cooling,
            bound=bindings,
            demand={each.variant: each.requests_per_second for each in snapshot.demand},
            localities=localities_of(workers.values()),
            states={state.key: state for state in variants},
            ranks={each.worker_id: rank for rank, each in enumerate(largest)},
        )

    def candidates(self, worker_ids: Iterable[WorkerId], key: VariantKey) -> list[Candidate]:
        """Give those Workers that can run the Variant, with all that they may lend to it."""
        named = [self.workers[worker_id] for worker_id in sorted(worker_ids)]
        return [
            candidate_of(worker, self.policy, locality=self.localities[worker.worker_id])
            for worker in named
            if key.quantization in worker.quantizations
        ]

    def largest_of(
        self, worker_ids: Collection[WorkerId], key: VariantKey, count: int
    ) -> list[Candidate]:
        """Give the largest of those Workers that can run the Variant, no more than so many.

        Those bound to Layer 0 are not counted: of them all but one are left out later.
        """
        chosen: list[Candidate] = []
        for candidate in self._by_size(worker_ids):
            if key.quantization in self.workers[candidate.worker_id].quantizations:
                chosen.append(candidate)
                count -= not candidate.starts_at_zero
                if count <= 0:
                    break
        return chosen

    def roomy(self, state: VariantDraft) -> list[Candidate]:
        """Give those that hold other Variants only, with the room that they have beside these."""
        if self.holding is None:
            least = min(each.sizes.smallest_layer_bytes for each in self.variants)
            self.holding = tuple(
                worker_id
                for worker_id, worker in self.workers.items()
                if self.rooms[worker_id] >= least and _may_share(self, worker)
            )
        own = {holder.worker_id for holder in state.holders}
        own.update(each.worker_id for each in self.directives if each.variant == state.key)
        return [
            candidate_of(worker, self.policy, self.rooms[worker_id])
            for worker_id in (*self.holding, *self.newly_held)
            if worker_id not in own
            and self.rooms[worker_id] >= state.sizes.smallest_layer_bytes
            and state.key.quantization in (worker := self.workers[worker_id]).quantizations
        ]

    def wanted(self, state: VariantDraft) -> float:
        """Return how much the Variant is asked for; alike for all where nothing is known."""
        return self.demand.get(state.key, 0.0)

    def reserve(self, worker_ids: Iterable[WorkerId]) -> None:
        """Speak for Workers, so that no other rule counts on them."""
        named = tuple(worker_ids)
        self.free.difference_update(named)
        self.emptying.difference_update(named)

    def issue(self, directive: RebalanceDirective) -> None:
        """Add a directive, and count its Layers as placement must from now on."""
        self.directives.append(directive)
        self.busy.add(directive.worker_id)
        if directive.worker_id in self.free:
            self.free.discard(directive.worker_id)
            self.newly_held.append(directive.worker_id)
        self.steady.discard(directive.worker_id)
        state = self.states.get(directive.variant)
        if state is None:
            return
        state.in_flight = True
        size = state.sizes.range_bytes(directive.shard_range)
        if directive.kind is DirectiveKind.LOAD_SHARD:
            self.rooms[directive.worker_id] -= size
            before = self.ordered_bytes.get(directive.worker_id, 0)
            self.ordered_bytes[directive.worker_id] = before + size
            count_in(state.planned, directive.shard_range, 1)
        else:
            self.rooms[directive.worker_id] += size
            for part in _ready_parts(self.workers[directive.worker_id], directive):
                count_in(state.ready, part, -1)
            if directive.worker_id not in self.bound:
                count_in(state.planned, directive.shard_range, -1)

    def _by_size(self, worker_ids: Collection[WorkerId]) -> Iterator[Candidate]:
        """Yield them largest first; looking at everybody is cheaper only for many."""
        if len(worker_ids) * 8 < len(self.largest):
            for rank in sorted(self.ranks[each] for each in worker_ids if each in self.ranks):
                yield self.largest[rank]
        else:
            yield from (each for each in self.largest if each.worker_id in worker_ids)


def _ready_parts(worker: WorkerView, directive: RebalanceDirective) -> Iterator[ShardRange]:
    """Yield what a drop takes of what is ready; the rest is called off before it is."""
    for shard in worker.held:
        if shard.variant == directive.variant and shard.holding is Holding.READY:
            part = shard.shard_range.overlap(directive.shard_range)
            if part is not None:
                yield part


def count_in(counts: list[int], shard_range: ShardRange, change: int) -> None:
    """Count these Layers once more, or once less."""
    for layer in shard_range.layers:
        counts[layer] += change


def load(
    worker_id: WorkerId,
    key: VariantKey,
    shard_range: ShardRange,
    reason: DirectiveReason,
    why: str = "",
) -> RebalanceDirective:
    """Make a LOAD_SHARD of these Layers only, not of what is held beside them."""
    kind = DirectiveKind.LOAD_SHARD
    return RebalanceDirective(worker_id, kind, key, shard_range, reason, why)


def drop(
    worker_id: WorkerId,
    key: VariantKey,
    shard_range: ShardRange,
    reason: DirectiveReason,
    why: str = "",
) -> RebalanceDirective:
    """Make a DROP_SHARD of these Layers."""
    kind = DirectiveKind.DROP_SHARD
    return RebalanceDirective(worker_id, kind, key, shard_range, reason, why)


def serving_order(snapshot: MeshSnapshot) -> tuple[VariantKey, ...]:
    """Order the Variants by which is served first.

    That is the one that is asked for most; among equals each preset's default by name, then others.
    """
    defaults = {preset.name: preset.default_quantization for preset in snapshot.presets}
    wanted = {each.variant: each.requests_per_second for each in snapshot.demand}

    def rank(key: VariantKey) -> tuple[float, bool, VariantKey]:
        return -wanted.get(key, 0.0), key.quantization != defaults[key.model], key

    return tuple(sorted((key for key, _ in snapshot.variants()), key=rank))


def candidate_of(
    worker: WorkerView,
    policy: PlannerPolicy,
    budget_bytes: int | None = None,
    locality: str = UNKNOWN,
) -> Candidate:
    """Show a Worker with all that it may lend, or with this many bytes of it."""
    usable = usable_bytes(worker.vram_bytes, policy)
    return Candidate(
        worker.worker_id,
        usable if budget_bytes is None else budget_bytes,
        worker.speed,
        worker.starts_at_zero,
        worker.layer_rates,
        locality,
        worker.vram_bytes,
        worker.prefill_speed,
    )


def _largest_first(workers: Iterable[WorkerView], policy: PlannerPolicy) -> tuple[Candidate, ...]:
    candidates = [candidate_of(worker, policy) for worker in workers]
    candidates.sort(key=lambda each: (-each.budget_bytes, -each.speed, each.worker_id))
    return tuple(candidates)


def _only_drains(worker: WorkerView) -> bool:
    return all(shard.holding is Holding.DRAINING for shard in worker.held)


def _may_share(draft: Draft, worker: WorkerView) -> bool:
    """Whether it holds something that stays, and may get something beside it."""
    worker_id = worker.worker_id
    if not worker.held or worker_id in draft.bound or worker_id in draft.cooling:
        return False
    return not _only_drains(worker)
