"""The Mesh Snapshot: all that the planner and the router may know, at one instant.

Plain values only. The store builds it inside one transaction; nothing here is ever written back.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from meshnet_common.ids import WorkerId
from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.protocol.messages import DirectiveKind, DirectiveReason
from meshnet_common.shard_range import ShardRange


@dataclass(frozen=True, slots=True, order=True)
class VariantKey:
    """Names one Variant: the preset and its quantization.

    With a `revision` it is one that had this name before, with other weights or more Layers: nobody
    is served by it, and what is held of it is dropped.
    """

    model: str
    quantization: str
    revision: str = ""

    def __str__(self) -> str:
        others = ", other weights" if self.revision else ""
        return f"{self.model} ({self.quantization}{others})"


class Holding(StrEnum):
    """How far a Worker is with a Shard; the order is its life."""

    ORDERED = "ordered"
    """A LOAD_SHARD is issued and not yet reported on."""
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    """A DROP_SHARD is issued: it counts as not covering from that moment."""


@dataclass(frozen=True, slots=True)
class HeldShard:
    """One run of Layers on one Worker; a Worker's runs of one Variant never overlap."""

    variant: VariantKey
    shard_range: ShardRange
    holding: Holding
    digest: str = ""
    """Of its weights, as its Worker tells; empty: not told, or not loaded yet."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One live Worker; `speed` is layer-tokens per second, measured, never zero."""

    worker_id: WorkerId
    url: str
    vram_bytes: int
    speed: float
    quantizations: frozenset[str]
    held: tuple[HeldShard, ...] = ()
    starts_at_zero: bool = False
    sessions: int = 0
    cooling_until: float = 0.0
    """No LOAD_SHARD before this instant: its last one failed or expired."""
    fingerprint: str = ""
    leaving: bool = False
    """It goes as soon as its Sessions are done; all that it holds is DRAINING."""
    layer_rates: tuple[float, ...] = ()
    """Layer-tokens per second when it holds 1, 2, ... Layers; empty: `speed`, however many."""
    queued: int = 0
    """What waits there for its turn."""
    kv_bytes_free: int | None = None
    """None: not reported."""
    region: str = ""
    round_trips: tuple[tuple[WorkerId, float], ...] = ()
    """Seconds to other Workers, as far as they were measured, by id."""
    uplink_bytes_per_sec: float = 0.0
    """0 is not measured, and counts as slow; so does the next one."""
    download_bytes_per_sec: float = 0.0
    retiring: bool = False
    """An Operator drains it: its Layers are loaded elsewhere, and then it drops them."""
    prefill_speed: float = 0.0
    """Layer-tokens per second of prompts, where `speed` is of single tokens; 0 is not measured."""


@dataclass(frozen=True, slots=True, order=True)
class Pin:
    """An Operator's word: this Worker serves these Layers of this Variant, and nothing else."""

    worker_id: WorkerId
    variant: VariantKey
    shard_range: ShardRange


@dataclass(frozen=True, slots=True, order=True)
class Demand:
    """How much a Variant is asked for: requests per second, averaged over some minutes."""

    variant: VariantKey
    requests_per_second: float


@dataclass(frozen=True, slots=True)
class MeshSnapshot:
    """The planner's only input; `presets` with the Variants that are to be served."""

    presets: tuple[ModelPreset, ...]
    workers: tuple[WorkerView, ...]
    pins: tuple[Pin, ...] = ()
    demand: tuple[Demand, ...] = ()
    """Variants that nobody asked for lately may be missing."""

    def variants(self) -> tuple[tuple[VariantKey, Variant], ...]:
        return tuple(
            (VariantKey(preset.name, variant.quantization), variant)
            for preset in self.presets
            for variant in preset.variants
        )


@dataclass(frozen=True, slots=True)
class PlannerPolicy:
    """What an Operator may tune.

    `headroom_share` of the VRAM is kept for KV Blocks unless `headroom_bytes` states it outright;
    a boundary moves, or a Worker goes over to another Variant, only if the flow grows by more than
    `move_gain`, after what the loading costs of the time that a Worker is expected to stay.
    """

    headroom_share: float = 0.2
    headroom_bytes: int | None = None
    move_gain: float = 0.25
    load_deadline_seconds: float = 600.0
    expected_life_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class RebalanceDirective:
    """What the planner wants one Worker to do; the store gives it an id and an epoch."""

    worker_id: WorkerId
    kind: DirectiveKind
    variant: VariantKey
    shard_range: ShardRange
    reason: DirectiveReason
    why: str = field(default="", compare=False)
    """One sentence for people: what this is for, and what it was preferred to."""
    deadline_seconds: float = field(default=0.0, compare=False)
    """Time for the load without progress, from its bytes and the Worker's line; 0: the policy's."""
    gives_up: bool = field(default=False, compare=False)
    """A drop that may open a gap: its Variant is given up for one that is asked for more."""
