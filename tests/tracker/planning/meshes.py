"""Small meshes for the planner's tests: builders, and a simulation that obeys directives.

A Layer is `GB` bytes large unless a test says otherwise, so that capacities read as Layers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshnet_common.ids import WorkerId
from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.protocol.messages import DirectiveKind
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes, held_bytes, usable_bytes
from meshnet_tracker.planning.coverage import PLANNED, held_ranges
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.filling import GapPlan
from meshnet_tracker.planning.orders import Candidate
from meshnet_tracker.planning.rebalance import plan_rebalance
from meshnet_tracker.planning.snapshot import (
    HeldShard,
    Holding,
    MeshSnapshot,
    PlannerPolicy,
    RebalanceDirective,
    VariantKey,
    WorkerView,
)

NOW = 1_000.0
GB = 1_000_000_000
KEY = VariantKey("llama", "nf4")
NO_HEADROOM = PlannerPolicy(headroom_bytes=0)


def variant(
    layers: int | Sequence[int],
    quantization: str = "nf4",
    *,
    embedding_bytes: int = 0,
    head_bytes: int = 0,
) -> Variant:
    """Build a Variant of so many Layers, or of Layers with these sizes."""
    return Variant(
        quantization=quantization,
        digest="digest",
        layer_bytes=(GB,) * layers if isinstance(layers, int) else tuple(layers),
        embedding_bytes=embedding_bytes,
        head_bytes=head_bytes,
        kv_bytes_per_token_per_layer=1,
        wire_dtype="bfloat16",
    )


def preset(*variants: Variant, name: str = "llama") -> ModelPreset:
    return ModelPreset(
        name=name,
        source="folder",
        architecture="llama",
        hidden_size=8,
        vocabulary_size=16,
        context_tokens=32,
        default_quantization=variants[0].quantization,
        variants=variants,
    )


def gap_plan(snapshot: MeshSnapshot) -> GapPlan:
    """Begin to fill the gaps of the tests' usual Variant."""
    draft = Draft.of(snapshot, NO_HEADROOM, NOW)
    return GapPlan.of(draft, draft.states[KEY])


def candidate(name: str, capacity: int, speed: float = 1.0, *, bound: bool = False) -> Candidate:
    """Build a Worker with empty hands that can hold so many Layers."""
    return Candidate(WorkerId(name), capacity * GB, speed, starts_at_zero=bound)


def worker(  # noqa: PLR0913 - a builder names what matters, and only that is visible in a test
    name: str,
    capacity: int = 0,
    *held: HeldShard,
    vram_bytes: int | None = None,
    speed: float = 1.0,
    bound: bool = False,
    sessions: int = 0,
    cooling_until: float = 0.0,
    leaving: bool = False,
    quantizations: Iterable[str] = ("nf4",),
) -> WorkerView:
    return WorkerView(
        worker_id=WorkerId(name),
        url=f"http://{name}",
        vram_bytes=capacity * GB if vram_bytes is None else vram_bytes,
        speed=speed,
        quantizations=frozenset(quantizations),
        held=held,
        starts_at_zero=bound,
        sessions=sessions,
        cooling_until=cooling_until,
        leaving=leaving,
    )


def held(
    start: int, end: int, holding: Holding = Holding.READY, key: VariantKey = KEY
) -> HeldShard:
    return HeldShard(key, ShardRange(start, end), holding)


def mesh(layers: int | Sequence[int] | ModelPreset, *workers: WorkerView) -> MeshSnapshot:
    presets = layers if isinstance(layers, ModelPreset) else preset(variant(layers))
    return MeshSnapshot((presets,), workers)


def plan(
    snapshot: MeshSnapshot, policy: PlannerPolicy = NO_HEADROOM
) -> tuple[RebalanceDirective, ...]:
    return plan_rebalance(snapshot, policy, NOW)


def told(directives: Iterable[RebalanceDirective]) -> list[tuple[str, str, int, int]]:
    """Shorten directives to what a test compares: Worker, LOAD or DROP, start, end."""
    return [
        (d.worker_id, d.kind.removesuffix("_SHARD"), d.shard_range.start, d.shard_range.end)
        for d in directives
    ]


def issued(snapshot: MeshSnapshot, directives: Iterable[RebalanceDirective]) -> MeshSnapshot:
    """Show the mesh with these directives in flight: ORDERED Layers, DRAINING Layers."""
    workers = {worker.worker_id: worker for worker in snapshot.workers}
    for directive in directives:
        obeying = workers[directive.worker_id]
        key, shard_range = directive.variant, directive.shard_range
        kept = _without(obeying.held, key, shard_range)
        load = directive.kind is DirectiveKind.LOAD_SHARD
        holding = Holding.ORDERED if load else Holding.DRAINING
        shards = (*kept, HeldShard(key, shard_range, holding))
        workers[directive.worker_id] = replace(obeying, held=shards)
    return replace(snapshot, workers=tuple(workers.values()))


def done(snapshot: MeshSnapshot, only: Iterable[WorkerId] | None = None) -> MeshSnapshot:
    """Show the mesh when everything in flight is done, or what these Workers have in flight."""
    names = {w.worker_id for w in snapshot.workers} if only is None else set(only)
    workers = tuple(_done(w) if w.worker_id in names else w for w in snapshot.workers)
    return replace(snapshot, workers=workers)


def settled(
    snapshot: MeshSnapshot, policy: PlannerPolicy = NO_HEADROOM, passes: int = 200
) -> tuple[MeshSnapshot, int]:
    """Plan and obey until nothing is planned; fails if that takes more passes than given."""
    for count in range(passes):
        directives = plan(snapshot, policy)
        if not directives:
            return snapshot, count
        before = snapshot
        snapshot = issued(snapshot, directives)
        assert_sound(before, directives, snapshot, policy)
        snapshot = done(snapshot)
    raise AssertionError(f"still planning after {passes} passes: {told(plan(snapshot, policy))}")


def runs(snapshot: MeshSnapshot, key: VariantKey = KEY) -> dict[str, tuple[int, int]]:
    """Show who holds what of a Variant."""
    return {
        str(worker.worker_id): (run.start, run.end)
        for worker in snapshot.workers
        for run in held_ranges(worker, key, PLANNED)
    }


def ready_counts(snapshot: MeshSnapshot, key: VariantKey) -> list[int]:
    layers = dict(snapshot.variants())[key].layer_count
    return [
        sum(
            shard.variant == key
            and shard.holding is Holding.READY
            and layer in shard.shard_range.layers
            for worker in snapshot.workers
            for shard in worker.held
        )
        for layer in range(layers)
    ]


def assert_sound(
    before: MeshSnapshot,
    directives: Sequence[RebalanceDirective],
    after: MeshSnapshot,
    policy: PlannerPolicy,
) -> None:
    """Check what holds for every plan: no gap is opened, no Budget passed, each run is one."""
    for key, _ in before.variants():
        was, now = ready_counts(before, key), ready_counts(after, key)
        opened = {layer for layer, count in enumerate(now) if was[layer] and not count}
        assert opened <= given_up(before, key, directives), told(directives)
        for view in after.workers:
            assert len(held_ranges(view, key, PLANNED)) <= 1, (view, told(directives))
    sizes = {key: LayerSizes.of(each) for key, each in before.variants()}
    loading = {d.worker_id for d in directives if d.kind is DirectiveKind.LOAD_SHARD}
    for view in after.workers:
        if view.worker_id in loading:
            taken = held_bytes(_joined(view), sizes)
            assert taken is not None
            assert taken <= usable_bytes(view.vram_bytes, policy), (view, told(directives))


def given_up(
    before: MeshSnapshot, key: VariantKey, directives: Iterable[RebalanceDirective]
) -> set[int]:
    """Name the Layers given up, of a Variant that serves nobody or that nobody asks for."""
    asked = {each.variant for each in before.demand if each.requests_per_second > 0}
    if 0 not in ready_counts(before, key) and (not asked or key in asked):
        return set()
    drops = (each for each in directives if each.variant == key and each.gives_up)
    return {layer for each in drops for layer in each.shard_range.layers}


def _joined(view: WorkerView) -> list[HeldShard]:
    """Join what is held, so that embeddings and output head count once."""
    keys = {shard.variant for shard in view.held}
    return [
        HeldShard(key, run, Holding.READY)
        for key in keys
        for run in held_ranges(view, key, frozenset(Holding))
    ]


def _without(
    shards: Iterable[HeldShard], key: VariantKey, shard_range: ShardRange
) -> list[HeldShard]:
    left = []
    for shard in shards:
        if shard.variant == key:
            left += [replace(shard, shard_range=p) for p in shard.shard_range.minus(shard_range)]
        else:
            left.append(shard)
    return left


def _done(view: WorkerView) -> WorkerView:
    kept = [shard for shard in view.held if shard.holding is not Holding.DRAINING]
    ready = frozenset(Holding) - {Holding.DRAINING}
    keys = sorted({shard.variant for shard in kept})
    shards = tuple(
        HeldShard(key, run, Holding.READY)
        for key in keys
        for run in held_ranges(replace(view, held=tuple(kept)), key, ready)
    )
    return replace(view, held=shards)
