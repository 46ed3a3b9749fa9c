"""Who holds what of each Variant, read from the Mesh Snapshot once for a planning pass."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes, held_bytes, usable_bytes
from meshnet_tracker.planning.coverage import (
    PLANNED,
    ROUTABLE,
    count_layers,
    gaps_of,
    held_ranges,
)
from meshnet_tracker.planning.pins import Binding
from meshnet_tracker.planning.snapshot import (
    HeldShard,
    Holding,
    PlannerPolicy,
    VariantKey,
    WorkerView,
)

SAFE_REPLICAS = 2
"""On so many Workers a Layer outlasts the loss of any one."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A Worker with its run of one Variant: the Layers that it holds or is about to hold.

    `budget_bytes` is what the whole run may take. A Worker that is not `settled` has a directive
    of this Variant in flight, or serves what an Operator says, and gets no other; one that is
    `barred` gets nothing to load, since it cools down or holds pieces that no directive could join.
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
        return () if all(self.planned) else gaps_of(self.planned)

    @property
    def started(self) -> bool:
        return any(self.planned)


@dataclass(frozen=True, slots=True)
class Reading:
    """What is needed to read a Worker's holdings."""

    policy: PlannerPolicy
    sizes: Mapping[VariantKey, LayerSizes]
    cooling: frozenset[WorkerId]
    bindings: Mapping[WorkerId, Binding]

    def room(self, worker: WorkerView) -> int:
        """Return the bytes that it has left once what drains is gone and what is ordered is there.

        None at all beside something of unknown size.
        """
        usable = usable_bytes(worker.vram_bytes, self.policy)
        if not worker.held:
            return usable
        kept = [shard for shard in worker.held if shard.holding is not Holding.DRAINING]
        taken = held_bytes(kept, self.sizes)
        return 0 if taken is None else max(0, usable - taken)

    def holders(self, worker: WorkerView, key: VariantKey) -> list[Holder]:
        """Give its run; more than one only if it holds pieces, which then stay as they are."""
        runs = self.planned_runs(worker, key)
        if not runs:
            return []
        whole = len(runs) == 1 and runs[0].end <= self.sizes[key].layer_count
        others = [shard for shard in worker.held if shard.variant != key]
        taken = held_bytes(others, self.sizes) if others else 0
        usable = usable_bytes(worker.vram_bytes, self.policy)
        budget = 0 if taken is None else max(0, usable - taken)
        fixed = worker.worker_id in self.bindings
        settled = whole and not fixed and not in_flight(worker, key)
        barred = fixed or not whole or worker.worker_id in self.cooling
        return [Holder(worker, run, budget, settled, barred) for run in runs]

    def planned_runs(self, worker: WorkerView, key: VariantKey) -> list[ShardRange]:
        """Give what placement may count on: of a bound Worker only what it is bound to."""
        runs = held_ranges(worker, key, PLANNED)
        binding = self.bindings.get(worker.worker_id)
        return runs if binding is None else binding.kept_of(key, runs)


def variant_drafts(
    keys: Sequence[VariantKey], workers: Iterable[WorkerView], reading: Reading
) -> tuple[VariantDraft, ...]:
    """Read all Variants, in this order."""
    holding: dict[VariantKey, list[WorkerView]] = {key: [] for key in keys}
    for worker in workers:
        for key in {shard.variant for shard in worker.held}:
            if key in holding:
                holding[key].append(worker)
    return tuple(_variant_draft(key, holding[key], reading) for key in keys)


def in_flight(worker: WorkerView, key: VariantKey) -> bool:
    """Whether some directive about this Variant is not done yet."""
    return any(s.variant == key and s.holding is not Holding.READY for s in worker.held)


def moves(shard: HeldShard) -> bool:
    """Whether it is on its way, in or out."""
    return shard.holding is not Holding.READY


def _variant_draft(
    key: VariantKey, workers: Sequence[WorkerView], reading: Reading
) -> VariantDraft:
    sizes = reading.sizes[key]
    holders = tuple(holder for worker in workers for holder in reading.holders(worker, key))
    ready = (run for worker in workers for run in held_ranges(worker, key, ROUTABLE))
    return VariantDraft(
        key=key,
        sizes=sizes,
        holders=holders,
        ready=count_layers(ready, sizes.layer_count),
        planned=count_layers((holder.run for holder in holders), sizes.layer_count),
        in_flight=any(in_flight(worker, key) for worker in workers),
    )
