"""What one planning pass knows and has decided so far, on top of the Mesh Snapshot.

The pass works on values of its own: counts of each Layer, who holds what, who is free. Every
directive goes through `Draft.issue`, which keeps them true, so that later rules see earlier ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveKind, DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes, held_bytes, usable_bytes
from meshnet_tracker.planning.coverage import (
    PLANNED,
    ROUTABLE,
    count_layers,
    gaps_of,
    held_ranges,
)
from meshnet_tracker.planning.orders import Candidate
from meshnet_tracker.planning.snapshot import (
    Holding,
    MeshSnapshot,
    PlannerPolicy,
    RebalanceDirective,
    VariantKey,
    WorkerView,
)


@dataclass(frozen=True, slots=True)
class Holder:
    """A Worker with its run of one Variant: the Layers that it holds or is about to hold.

    `budget_bytes` is what the whole run may take. A Worker that is not `settled` has a directive
    of this Variant in flight and gets no other; one that is `barred` gets nothing to load, since
    it cools down or holds pieces that no directive could join.
    """

    worker: WorkerView
    run: ShardRange
    budget_bytes: int
    settled: bool
    barred: bool

    @property
    def worker_id(self) -> WorkerId:
        return self.worker.worker_id

    @property
    def may_load(self) -> bool:
        return self.settled and not self.barred


@dataclass(slots=True)
class VariantDraft:
    """One Variant in this pass: who holds it, and how often each Layer is ready and planned."""

    key: VariantKey
    sizes: LayerSizes
    holders: tuple[Holder, ...]
    ready: list[int]
    planned: list[int]
    in_flight: bool

    @property
    def gaps(self) -> tuple[ShardRange, ...]:
        return gaps_of(self.planned)

    @property
    def started(self) -> bool:
        return any(self.planned)


@dataclass(slots=True)
class Draft:
    """A planning pass; `free` hold nothing, `emptying` only what they are about to drop."""

    policy: PlannerPolicy
    variants: tuple[VariantDraft, ...]
    workers: Mapping[WorkerId, WorkerView]
    free: set[WorkerId]
    emptying: set[WorkerId]
    cooling: frozenset[WorkerId]
    busy: set[WorkerId] = field(default_factory=set)
    directives: list[RebalanceDirective] = field(default_factory=list)

    @classmethod
    def of(cls, snapshot: MeshSnapshot, policy: PlannerPolicy, now: float) -> Self:
        # Sorted, so that the order of the input changes nothing, not even a sum of floats.
        # Who is leaving is told nothing more, and nothing is expected of it.
        staying = (worker for worker in snapshot.workers if not worker.leaving)
        workers = {w.worker_id: w for w in sorted(staying, key=lambda w: w.worker_id)}
        cooling = frozenset(w.worker_id for w in workers.values() if w.cooling_until > now)
        able = [w for w in workers.values() if w.worker_id not in cooling]
        return cls(
            policy=policy,
            variants=_variant_drafts(snapshot, workers.values(), policy, cooling),
            workers=workers,
            free={w.worker_id for w in able if not w.held},
            emptying={w.worker_id for w in able if w.held and _only_drains(w)},
            cooling=cooling,
        )

    def candidates(self, worker_ids: Iterable[WorkerId], key: VariantKey) -> list[Candidate]:
        """Give those Workers that can run the Variant, with all that they may lend to it."""
        named = [self.workers[worker_id] for worker_id in sorted(worker_ids)]
        return [
            Candidate(
                worker.worker_id,
                usable_bytes(worker.vram_bytes, self.policy),
                worker.speed,
                worker.starts_at_zero,
            )
            for worker in named
            if key.quantization in worker.quantizations
        ]

    def reserve(self, worker_ids: Iterable[WorkerId]) -> None:
        """Speak for Workers, so that no other rule counts on them."""
        self.free.difference_update(worker_ids)
        self.emptying.difference_update(worker_ids)

    def issue(self, directive: RebalanceDirective) -> None:
        """Add a directive, and count its Layers as placement must from now on."""
        self.directives.append(directive)
        self.busy.add(directive.worker_id)
        self.free.discard(directive.worker_id)
        state = next((each for each in self.variants if each.key == directive.variant), None)
        if state is None:
            return
        state.in_flight = True
        for layer in directive.shard_range.layers:
            if directive.kind is DirectiveKind.LOAD_SHARD:
                state.planned[layer] += 1
            else:
                state.planned[layer] -= 1
                state.ready[layer] -= 1


def load(
    worker_id: WorkerId, key: VariantKey, shard_range: ShardRange, reason: DirectiveReason
) -> RebalanceDirective:
    """Make a LOAD_SHARD of these Layers only, not of what is held beside them."""
    return RebalanceDirective(worker_id, DirectiveKind.LOAD_SHARD, key, shard_range, reason)


def drop(
    worker_id: WorkerId, key: VariantKey, shard_range: ShardRange, reason: DirectiveReason
) -> RebalanceDirective:
    """Make a DROP_SHARD of these Layers."""
    return RebalanceDirective(worker_id, DirectiveKind.DROP_SHARD, key, shard_range, reason)


def serving_order(snapshot: MeshSnapshot) -> tuple[VariantKey, ...]:
    """Order the Variants by which is served first: each preset's default by name, then others."""
    defaults = {preset.name: preset.default_quantization for preset in snapshot.presets}
    keys = (key for key, _ in snapshot.variants())
    return tuple(sorted(keys, key=lambda key: (key.quantization != defaults[key.model], key)))


def _only_drains(worker: WorkerView) -> bool:
    return all(shard.holding is Holding.DRAINING for shard in worker.held)


def _variant_drafts(
    snapshot: MeshSnapshot,
    workers: Iterable[WorkerView],
    policy: PlannerPolicy,
    cooling: frozenset[WorkerId],
) -> tuple[VariantDraft, ...]:
    sizes = {key: LayerSizes.of(variant) for key, variant in snapshot.variants()}
    holding: dict[VariantKey, list[WorkerView]] = {key: [] for key in sizes}
    for worker in workers:
        for key in {shard.variant for shard in worker.held} & sizes.keys():
            holding[key].append(worker)
    return tuple(
        VariantDraft(
            key=key,
            sizes=sizes[key],
            holders=tuple(
                holder
                for worker in holding[key]
                for holder in _holders(worker, key, sizes, policy, worker.worker_id in cooling)
            ),
            ready=_counts(holding[key], key, ROUTABLE, sizes[key]),
            planned=_counts(holding[key], key, PLANNED, sizes[key]),
            in_flight=any(_in_flight(worker, key) for worker in holding[key]),
        )
        for key in serving_order(snapshot)
    )


def _counts(
    workers: Iterable[WorkerView],
    key: VariantKey,
    holdings: frozenset[Holding],
    sizes: LayerSizes,
) -> list[int]:
    ranges = (run for worker in workers for run in held_ranges(worker, key, holdings))
    return count_layers(ranges, sizes.layer_count)


def _in_flight(worker: WorkerView, key: VariantKey) -> bool:
    return any(s.variant == key and s.holding is not Holding.READY for s in worker.held)


def _holders(
    worker: WorkerView,
    key: VariantKey,
    sizes: Mapping[VariantKey, LayerSizes],
    policy: PlannerPolicy,
    cooling: bool,
) -> list[Holder]:
    """Give the Worker's run; more than one only if it holds pieces, which then stay as they are."""
    runs = held_ranges(worker, key, PLANNED)
    whole = len(runs) == 1 and runs[0].end <= sizes[key].layer_count
    others = held_bytes((shard for shard in worker.held if shard.variant != key), sizes)
    usable = usable_bytes(worker.vram_bytes, policy)
    budget = 0 if others is None else max(0, usable - others)
    settled = whole and not _in_flight(worker, key)
    return [Holder(worker, run, budget, settled, cooling or not whole) for run in runs]
