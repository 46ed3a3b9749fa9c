"""The Mesh Snapshot: all that the planner and the router may know, at one instant.

Plain values only. The store builds it inside one transaction; nothing here is ever written back.
"""

from dataclasses import dataclass
from enum import StrEnum

from meshnet_common.ids import WorkerId
from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.protocol.messages import DirectiveKind, DirectiveReason
from meshnet_common.shard_range import ShardRange


@dataclass(frozen=True, slots=True, order=True)
class VariantKey:
    """Names one Variant: the preset and its quantization."""

    model: str
    quantization: str


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


@dataclass(frozen=True, slots=True)
class MeshSnapshot:
    """The planner's only input; `presets` with the Variants that are to be served."""

    presets: tuple[ModelPreset, ...]
    workers: tuple[WorkerView, ...]

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
    a boundary moves only if the flow grows by more than `move_gain`.
    """

    headroom_share: float = 0.2
    headroom_bytes: int | None = None
    move_gain: float = 0.25
    load_deadline_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class RebalanceDirective:
    """What the planner wants one Worker to do; the store gives it an id and an epoch."""

    worker_id: WorkerId
    kind: DirectiveKind
    variant: VariantKey
    shard_range: ShardRange
    reason: DirectiveReason
