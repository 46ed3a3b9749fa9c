"""A Worker under simulated churn: what it holds, and what it loads next."""

from dataclasses import replace

from bench.placement.churn_reload import Layer
from bench.placement.churn_traces import LAYER_BYTES, Machine
from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import HeldShard, Holding, VariantKey, WorkerView
from meshnet_worker.pieces import PIECE_SECONDS


class Worker:
    """A Worker and what it does; `alive` is what nobody but the simulation knows."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.alive = True
        self.held: list[HeldShard] = []
        self.loading: HeldShard | None = None

    @property
    def view(self) -> WorkerView:
        return WorkerView(
            worker_id=WorkerId(self.machine.name),
            url=f"http://{self.machine.name}.example",
            vram_bytes=self.machine.capacity * LAYER_BYTES,
            speed=self.machine.speed,
            quantizations=frozenset({"f16"}),
            held=tuple(self.held),
            download_bytes_per_sec=self.machine.bytes_per_second,
        )

    @property
    def ready(self) -> frozenset[Layer]:
        return frozenset(
            (shard.variant.model, layer)
            for shard in self.held
            if shard.holding is Holding.READY
            for layer in shard.shard_range.layers
        )

    @property
    def room(self) -> int:
        """Layers that fit beside what is in memory now."""
        there = (len(each.shard_range) for each in self.held if each.holding is not Holding.ORDERED)
        return self.machine.capacity - sum(there)

    def begin_next(self) -> HeldShard | None:
        """Begin a piece of what it has begun, else of what there is room for; None if it loads."""
        if self.loading is not None:
            return None
        begun = [each for each in self.held if each.holding is Holding.LOADING]
        ordered = [each for each in self.held if each.holding is Holding.ORDERED]
        fitting = [each for each in ordered if len(each.shard_range) <= self.room]
        whole = next(iter([*begun, *fitting]), None)
        if whole is not None:
            self.put(whole.variant, whole.shard_range, Holding.LOADING)
            self.loading = replace(whole, shard_range=self._piece_of(whole))
        return self.loading

    def _piece_of(self, whole: HeldShard) -> ShardRange:
        """Choose what lies beside what is ready, as the Worker does."""
        run = whole.shard_range
        count = min(len(run), max(1, int(PIECE_SECONDS * self.machine.layers_per_second)))
        ready = (e for e in self.held if e.variant == whole.variant and e.holding is Holding.READY)
        downward = any(each.shard_range.start == run.end for each in ready)
        start = run.end - count if downward else run.start
        return ShardRange(start, start + count)

    def call_off(self, variant: VariantKey, run: ShardRange) -> None:
        """Let what is not there yet come no more."""
        loading = self.loading
        if loading is not None and loading.variant == variant and loading.shard_range.overlap(run):
            self.loading = None
        self.put(variant, run, None)

    def put(self, variant: VariantKey, run: ShardRange, holding: Holding | None) -> None:
        """Let a run be held in this way, or not at all; runs that are ready and touch are one."""
        kept: list[HeldShard] = []
        for shard in self.held:
            if shard.variant != variant:
                kept.append(shard)
                continue
            ready = holding is Holding.READY and shard.holding is holding
            if ready and shard.shard_range.touches(run):
                run = run.union(shard.shard_range)
                continue
            kept += [replace(shard, shard_range=piece) for piece in shard.shard_range.minus(run)]
        if holding is not None:
            kept.append(HeldShard(variant, run, holding))
        self.held = sorted(kept, key=lambda shard: (shard.variant, shard.shard_range))
