"""What Operators said of single Workers: pins, and Workers that are to be emptied.

A pin that cannot be obeyed is ignored, and `refusal` says why. A Worker that is bound counts for
placement with what it is to keep and nothing else, so that others load the rest of what it holds
before it drops that; `obeying.py` orders it what is left to do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes, usable_bytes
from meshnet_tracker.planning.snapshot import (
    MeshSnapshot,
    Pin,
    PlannerPolicy,
    VariantKey,
    WorkerView,
)


@dataclass(frozen=True, slots=True)
class Binding:
    """What one Worker is to hold, and nothing else; no pin: nothing at all."""

    pin: Pin | None

    def kept_of(self, key: VariantKey, runs: Iterable[ShardRange]) -> list[ShardRange]:
        """Give the parts of these runs of a Variant that it is to keep."""
        if self.pin is None or self.pin.variant != key:
            return []
        parts = (run.overlap(self.pin.shard_range) for run in runs)
        return [part for part in parts if part is not None]


def bindings_of(
    snapshot: MeshSnapshot,
    workers: Mapping[WorkerId, WorkerView],
    sizes: Mapping[VariantKey, LayerSizes],
    policy: PlannerPolicy,
) -> dict[WorkerId, Binding]:
    """Bind the Workers that are pinned or to be emptied; of several pins the first holds."""
    bindings = {
        pin.worker_id: Binding(pin)
        for pin in sorted(snapshot.pins, reverse=True)
        if not refusal(pin, workers, sizes, policy)
    }
    retiring = (worker.worker_id for worker in workers.values() if worker.retiring)
    return bindings | dict.fromkeys(retiring, Binding(None))


def refusal(
    pin: Pin,
    workers: Mapping[WorkerId, WorkerView],
    sizes: Mapping[VariantKey, LayerSizes],
    policy: PlannerPolicy,
) -> str:
    """Say why a pin cannot be obeyed; empty: it can."""
    worker, known = workers.get(pin.worker_id), sizes.get(pin.variant)
    if worker is None:
        return "the Worker is not in the Mesh"
    if known is None:
        return "the Variant is not served"
    needed, usable = known.range_bytes(pin.shard_range), usable_bytes(worker.vram_bytes, policy)
    checks = (
        (
            pin.variant.quantization not in worker.quantizations,
            "the Worker cannot run this quantization",
        ),
        (
            pin.shard_range.end > known.layer_count,
            f"the Variant has {known.layer_count} Layers only",
        ),
        (
            worker.starts_at_zero and pin.shard_range.start > 0,
            "the Worker can only serve Layers from 0 on",
        ),
        (needed > usable, f"it takes {needed} bytes, and the Worker has {usable}"),
    )
    return next((text for fails, text in checks if fails), "")
