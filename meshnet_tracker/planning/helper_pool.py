"""Which Workers could help to cover a Variant, what they have room for, and what they would drop.

Dropped is what others have ready as well, and what is of no use until the Variant is covered: of
the Variant itself, which serves nobody now, and of those that are given up for it. What a Worker
only loads for these is called off.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from meshnet_common.ids import WorkerId
from meshnet_tracker.planning.clearing import pieces_of
from meshnet_tracker.planning.coming import callable_off, ready_and_coming
from meshnet_tracker.planning.draft import count_in
from meshnet_tracker.planning.filling import Counts, GapPlan
from meshnet_tracker.planning.holders import Holder
from meshnet_tracker.planning.quickly import UNMEASURED_BYTES_PER_SEC, bytes_under_way
from meshnet_tracker.planning.snapshot import HeldShard, Holding, VariantKey, WorkerView
from meshnet_tracker.planning.soonest import Helper

DROP_SECONDS = 6.0
"""About so long Sessions take to end before Layers are dropped."""


@dataclass(slots=True)
class HelperPool:
    """Helpers for one plan, and what each of them would drop for it."""

    plan: GapPlan
    given_up: frozenset[VariantKey]
    drops: bool
    ready: Counts
    helpers: list[Helper] = field(default_factory=list)
    pieces: dict[WorkerId, tuple[HeldShard, ...]] = field(default_factory=dict)
    budgets: dict[WorkerId, int] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: GapPlan, given_up: frozenset[VariantKey], *, drops: bool) -> "HelperPool":
        """Look at all Workers; nobody drops anything unless `drops`."""
        own = plan.state.key
        ready = {key: list(counts) for key, counts in plan.ready.items() if key != own}
        pool = cls(plan, given_up, drops, ready)
        for worker in plan.draft.workers.values():
            pool.helpers += pool._helpers(worker)
        return pool

    def called_off_bytes(self, worker_id: WorkerId) -> int:
        """Count what it would not load after all."""
        coming = (e for e in self.pieces.get(worker_id, ()) if e.holding is not Holding.READY)
        return sum(map(self.size_of, coming))

    def size_of(self, shard: HeldShard) -> int:
        return self.plan.draft.states[shard.variant].sizes.range_bytes(shard.shard_range)

    def _helpers(self, worker: WorkerView) -> Iterator[Helper]:
        own = [each for each in self.plan.state.holders if each.worker_id == worker.worker_id]
        if not self._is_able(worker) or len(own) > 1 or any(each.barred for each in own):
            for holder in own:
                yield self._as_it_is(worker, holder)
        elif own:
            yield self._beside_its_run(worker, own[0])
        else:
            helper = self._anywhere(worker)
            if helper.layers:
                yield helper

    def _as_it_is(self, worker: WorkerView, holder: Holder) -> Helper:
        ready, coming = ready_and_coming(worker, self.plan.state.key, holder.run)
        seconds = sum(bytes_under_way(self.plan, worker.worker_id)) / _line(worker)
        return Helper(worker.worker_id, 0, self._rate(worker), seconds, ready, coming=coming)

    def _anywhere(self, worker: WorkerView) -> Helper:
        freed_bytes, seconds = self._freed(worker)
        budget = max(0, self.plan.draft.rooms[worker.worker_id]) + freed_bytes
        self.budgets[worker.worker_id] = budget
        layers = self._layers(budget)
        rate, bound = self._rate(worker), worker.starts_at_zero
        return Helper(worker.worker_id, layers, rate, seconds, from_zero=bound)

    def _beside_its_run(self, worker: WorkerView, holder: Holder) -> Helper:
        plan, worker_id = self.plan, worker.worker_id
        freed_bytes, seconds = self._freed(worker)
        room = max(0, plan.draft.rooms[worker_id]) + freed_bytes
        run_bytes = plan.state.sizes.range_bytes(holder.run)
        budget = min(holder.budget_bytes + freed_bytes, run_bytes + room)
        self.budgets[worker_id] = budget
        ready, coming = ready_and_coming(worker, plan.state.key, holder.run)
        may_release = self._may_drop(worker) and plan.state.key in self.given_up and holder.settled
        return Helper(
            worker_id,
            self._layers(max(0, budget - run_bytes)),
            self._rate(worker),
            seconds,
            ready,
            worker.starts_at_zero,
            self._layers(budget) if may_release else 0,
            max(seconds, DROP_SECONDS),
            coming,
        )

    def _freed(self, worker: WorkerView) -> tuple[int, float]:
        """Note what it would drop; answers how many bytes that are, and when it could begin."""
        freed_bytes = 0
        if self._may_drop(worker):
            called_off = callable_off(worker, self.ready, self.given_up)
            dropped = (
                each
                for each in pieces_of(worker, self.ready, self.given_up)
                if each.variant in self.ready
            )
            pieces = (*called_off, *dropped)
            self.pieces[worker.worker_id] = pieces
            for piece in pieces:
                freed_bytes += self.size_of(piece)
                if piece.variant not in self.given_up and piece.holding is Holding.READY:
                    count_in(self.ready[piece.variant], piece.shard_range, -1)
        under_way = sum(bytes_under_way(self.plan, worker.worker_id))
        seconds = (under_way - self.called_off_bytes(worker.worker_id)) / _line(worker)
        draining = any(shard.holding is Holding.DRAINING for shard in worker.held)
        return freed_bytes, max(seconds, DROP_SECONDS if draining or freed_bytes else 0.0)

    def _may_drop(self, worker: WorkerView) -> bool:
        return self.drops and worker.worker_id not in self.plan.draft.busy

    def _is_able(self, worker: WorkerView) -> bool:
        """Whether it may be told to load something of the Variant, now or soon."""
        plan, draft, worker_id = self.plan, self.plan.draft, worker.worker_id
        key = plan.state.key
        kept = any(shard.holding is not Holding.DRAINING for shard in worker.held)
        open_to_all = worker_id in draft.free | draft.emptying or worker_id in draft.newly_held
        ordered = any(d.worker_id == worker_id and d.variant == key for d in draft.directives)
        barred = worker_id in draft.bound or worker_id in draft.cooling or worker_id in plan.used
        return (
            (kept or open_to_all)
            and not ordered
            and not barred
            and key.quantization in worker.quantizations
        )

    def _layers(self, budget_bytes: int) -> int:
        sizes = self.plan.state.sizes
        return min(budget_bytes // sizes.bytes_per_layer, sizes.layer_count)

    def _rate(self, worker: WorkerView) -> float:
        return _line(worker) / self.plan.state.sizes.bytes_per_layer


def _line(worker: WorkerView) -> float:
    return worker.download_bytes_per_sec or UNMEASURED_BYTES_PER_SEC
