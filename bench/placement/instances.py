"""The published instances as Mesh Snapshots: Workers, links, and what a step takes on each device.

A Worker's memory is the published one, so that what weights leave of it is its room for KV. The
policy's headroom makes each device fit exactly as many Layers as its published table is long.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from meshnet_common.ids import WorkerId
from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import (
    HeldShard,
    Holding,
    MeshSnapshot,
    PlannerPolicy,
    VariantKey,
    WorkerView,
)

NAMES = ("q10", "single24", "geo24", "het42")
DATA = Path(__file__).parent / "data"
PROFILES = {"q10": "30b", "single24": "70b", "geo24": "70b", "het42": "70b"}

POLICY = PlannerPolicy(headroom_share=0.36)
MOST_SEQUENCES = 500
"""No published profile goes further; a larger batch waits for its turn."""
MOST_PROMPT_TOKENS = 6000
MEASURED_TOKENS = 512
"""Of such a prompt a Worker measures its speed."""
QUANTIZATION = "f16"

Placement = Mapping[WorkerId, ShardRange]


@dataclass(frozen=True, slots=True)
class Link:
    """One way from one machine to another."""

    seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Device:
    """One kind of machine. Seconds per Layer of a step, and tokens/s when it holds k Layers."""

    name: str
    memory_bytes: int
    prompts_at_once: int
    decode_knots: tuple[tuple[int, float], ...]
    prompt_knots: tuple[tuple[int, float], ...]
    rates: tuple[float, ...]

    @property
    def capacity(self) -> int:
        return len(self.rates)

    @property
    def layer_rates(self) -> tuple[float, ...]:
        """Layer-tokens per second when it holds 1, 2, ... Layers."""
        return tuple(layers * rate for layers, rate in enumerate(self.rates, 1))

    @cached_property
    def decode_seconds(self) -> tuple[float, ...]:
        """For 0, 1, 2, ... sequences."""
        return tuple(_between(self.decode_knots, size) for size in range(MOST_SEQUENCES + 1))

    @cached_property
    def prompt_seconds(self) -> tuple[float, ...]:
        """For 0, 1, 2, ... tokens."""
        return tuple(_between(self.prompt_knots, size) for size in range(MOST_PROMPT_TOKENS + 1))


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of an instance."""

    worker_id: WorkerId
    device: Device
    region: str


@dataclass(frozen=True)
class Instance:
    """A model, machines and links; what a placement is scored on."""

    name: str
    layers: int
    layer_bytes: int
    kv_bytes_per_token_per_layer: int
    hop_bytes_per_token: int
    nodes: tuple[Node, ...]
    inside: Link
    between: Link
    client_outside: bool = False
    """Whoever asks is in no region: a link between regions lies to each Worker."""
    mean_prompt_tokens: int = 763
    mean_output_tokens: int = 232
    published: Mapping[str, float] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """Published ones, by name."""

    @property
    def key(self) -> VariantKey:
        return VariantKey(self.name, QUANTIZATION)

    def node(self, worker_id: WorkerId) -> Node:
        return self._by_id[worker_id]

    @cached_property
    def _by_id(self) -> dict[WorkerId, Node]:
        return {node.worker_id: node for node in self.nodes}

    def link(self, sender: Node, receiver: Node) -> Link:
        return self.inside if sender.region == receiver.region else self.between

    @property
    def client_seconds(self) -> float:
        """One way between a Worker and whoever asks."""
        return (self.between if self.client_outside else self.inside).seconds


@cache
def load(name: str) -> Instance:
    """Read one of the published instances."""
    facts = _read(f"{name}.json")
    profile = _read("profiles.json")[PROFILES[name]]
    devices = {
        kind: _device(kind, profile["devices"][kind], rates)
        for kind, rates in facts["tokens_per_second_when_holding_k_layers"].items()
    }
    inside = _link(facts["links"]["inside"])
    return Instance(
        name=name,
        layers=facts["layers"],
        layer_bytes=profile["layer_bytes"],
        kv_bytes_per_token_per_layer=profile["kv_bytes_per_token_per_layer"],
        hop_bytes_per_token=facts["bytes_per_token_per_hop"],
        nodes=tuple(
            Node(WorkerId(node["id"]), devices[node["type"]], node["region"])
            for node in facts["nodes"]
        ),
        inside=inside,
        between=_link(facts["links"]["between"]) if facts["links"]["between"] else inside,
        client_outside=facts["coordinator_region"] is not None,
        mean_prompt_tokens=facts["mean_prompt_tokens"],
        mean_output_tokens=facts["mean_output_tokens"],
        published=facts["published"],
        placements={
            row: {WorkerId(worker): ShardRange(*run) for worker, run in runs.items()}
            for row, runs in _read("published.json")[name].items()
        },
    )


def preset(instance: Instance) -> ModelPreset:
    """Describe the model as one that a Mesh serves."""
    variant = Variant(
        quantization=QUANTIZATION,
        digest=f"sha256:{instance.name}",
        layer_bytes=(instance.layer_bytes,) * instance.layers,
        embedding_bytes=0,
        head_bytes=0,
        kv_bytes_per_token_per_layer=instance.kv_bytes_per_token_per_layer,
        wire_dtype="bfloat16",
    )
    return ModelPreset(
        name=instance.name,
        source="published",
        architecture="llama",
        hidden_size=instance.hop_bytes_per_token // 2,
        vocabulary_size=32000,
        context_tokens=2 * MOST_PROMPT_TOKENS,
        default_quantization=QUANTIZATION,
        variants=(variant,),
    )


def snapshot(instance: Instance, placement: Placement | None = None) -> MeshSnapshot:
    """Show a Tracker this instance, with everybody free or this placement ready."""
    placement = placement or {}
    return MeshSnapshot(
        presets=(preset(instance),),
        workers=tuple(view(instance, node, placement) for node in instance.nodes),
    )


def view(instance: Instance, node: Node, placement: Placement) -> WorkerView:
    """Show one machine as a Worker that is idle."""
    run = placement.get(node.worker_id)
    held = () if run is None else (HeldShard(instance.key, run, Holding.READY),)
    rates = node.device.layer_rates
    return WorkerView(
        worker_id=node.worker_id,
        url=f"http://{node.worker_id}.example",
        vram_bytes=node.device.memory_bytes,
        speed=1 / node.device.decode_seconds[1],
        quantizations=frozenset({QUANTIZATION}),
        held=held,
        layer_rates=rates,
        kv_bytes_free=kv_bytes(instance, node, run) if run else None,
        region=node.region,
        round_trips=tuple(
            (other.worker_id, 2 * instance.link(node, other).seconds)
            for other in sorted(instance.nodes, key=lambda other: other.worker_id)
            if other is not node
        ),
        uplink_bytes_per_sec=instance.between.bytes_per_second,
        download_bytes_per_sec=instance.between.bytes_per_second,
        prefill_speed=MEASURED_TOKENS / node.device.prompt_seconds[MEASURED_TOKENS],
    )


def kv_bytes(instance: Instance, node: Node, run: ShardRange) -> int:
    """What weights leave of its memory."""
    return max(0, node.device.memory_bytes - len(run) * instance.layer_bytes)


def replicas(instance: Instance, placement: Placement) -> int:
    """Count the Workers that hold the thinnest Layer."""
    counts = [0] * instance.layers
    for run in placement.values():
        for layer in run.layers:
            counts[layer] += 1
    return min(counts)


def bytes_held(instance: Instance, runs: Iterable[ShardRange]) -> int:
    """Count the bytes of the weights in these runs."""
    return sum(map(len, runs)) * instance.layer_bytes


def _device(kind: str, profile: Mapping[str, Any], rates: Sequence[float]) -> Device:
    return Device(
        name=kind,
        memory_bytes=profile["memory_bytes"],
        prompts_at_once=profile["prompts_at_once"],
        decode_knots=_knots([(1, profile["decode_ms_per_layer"][0][1])], profile, "decode"),
        prompt_knots=_knots([], profile, "prompt"),
        rates=tuple(rates),
    )


def _knots(
    first: Iterable[tuple[int, float]], profile: Mapping[str, Any], phase: str
) -> tuple[tuple[int, float], ...]:
    pairs = (*first, *profile[f"{phase}_ms_per_layer"])
    return ((0, 0.0), *((size, milliseconds / 1000) for size, milliseconds in pairs))


def _between(knots: Sequence[tuple[int, float]], size: int) -> float:
    """Interpolate; beyond the last knot go on as from the one before it."""
    if size == 0:
        return 0.0
    index = min(max(bisect_left(knots, (size, 0.0)), 1), len(knots) - 1)
    (left, low), (right, high) = knots[index - 1], knots[index]
    return low + (high - low) * (size - left) / (right - left)


def _link(facts: Mapping[str, float]) -> Link:
    return Link(facts["one_way_ms"] / 1000, facts["bytes_per_second"])


def _read(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))
