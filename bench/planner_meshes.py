"""Large Meshes as values, for measuring the planner and the router: the same for the same figures.

Capacities, speeds and links differ from Worker to Worker as volunteers' do; a Layer is one GB.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from meshnet_common.ids import WorkerId
from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import (
    Demand,
    HeldShard,
    Holding,
    MeshSnapshot,
    VariantKey,
    WorkerView,
)

GB = 1_000_000_000
HEADROOM_SHARE = 0.2
CAPACITIES = (8, 12, 16, 24, 32, 48)
SPEEDS = (500.0, 800.0, 1300.0, 2100.0)
REGIONS = ("eu", "us", "as")


def presets(models: int, layers: int) -> tuple[ModelPreset, ...]:
    """Build so many models of so many Layers each, with one Variant."""
    return tuple(_preset(f"m{index:02}", layers) for index in range(models))


def fresh_mesh(workers: int, models: int = 20, layers: int = 200) -> MeshSnapshot:
    """Build a Mesh in which nobody holds anything, and all models are asked for alike."""
    served = presets(models, layers)
    pool = tuple(_worker(index, Random(index)) for index in range(workers))
    demand = tuple(Demand(VariantKey(each.name, "nf4"), 1.0) for each in served)
    return MeshSnapshot(served, pool, demand=demand)


def big_mesh(workers: int, models: int = 20, layers: int = 200) -> MeshSnapshot:
    """Build a Mesh in which every Worker serves one model, in chains one behind the other."""
    empty = fresh_mesh(workers, models, layers)
    holding: list[WorkerView] = []
    for index, preset in enumerate(empty.presets):
        key = VariantKey(preset.name, "nf4")
        holding += _chained(empty.workers[index::models], key, layers)
    return replace(empty, workers=tuple(sorted(holding, key=lambda each: each.worker_id)))


def churned(snapshot: MeshSnapshot, share: float, seed: int = 1) -> MeshSnapshot:
    """Let this share of the Workers be lost and as many with empty hands have joined."""
    random = Random(seed)
    lost = set(random.sample(range(len(snapshot.workers)), int(len(snapshot.workers) * share)))
    pool = tuple(
        replace(worker, worker_id=WorkerId(f"{worker.worker_id}n"), held=())
        if index in lost
        else worker
        for index, worker in enumerate(snapshot.workers)
    )
    return replace(snapshot, workers=pool)


def _preset(name: str, layers: int) -> ModelPreset:
    variant = Variant(
        quantization="nf4",
        digest="digest",
        layer_bytes=(GB,) * layers,
        embedding_bytes=0,
        head_bytes=0,
        kv_bytes_per_token_per_layer=4096,
        wire_dtype="bfloat16",
    )
    return ModelPreset(
        name=name,
        source="folder",
        architecture="llama",
        hidden_size=8192,
        vocabulary_size=128_000,
        context_tokens=8192,
        default_quantization="nf4",
        variants=(variant,),
    )


def _worker(index: int, random: Random) -> WorkerView:
    vram_bytes = round(random.choice(CAPACITIES) * GB / (1 - HEADROOM_SHARE))
    return WorkerView(
        worker_id=WorkerId(f"w{index:05}"),
        url=f"http://w{index:05}",
        vram_bytes=vram_bytes,
        speed=random.choice(SPEEDS),
        quantizations=frozenset({"nf4"}),
        region=random.choice(REGIONS),
        uplink_bytes_per_sec=random.choice((2e6, 1e7, 1e8)),
        download_bytes_per_sec=random.choice((1e7, 5e7, 1e8)),
    )


def _chained(pool: Sequence[WorkerView], key: VariantKey, layers: int) -> Iterator[WorkerView]:
    position = 0
    for worker in pool:
        room = round(worker.vram_bytes * (1 - HEADROOM_SHARE)) // GB
        end = min(position + room, layers)
        yield replace(worker, held=(HeldShard(key, ShardRange(position, end), Holding.READY),))
        position = end % layers
