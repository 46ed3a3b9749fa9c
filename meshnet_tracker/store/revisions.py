"""Tells Shards of a Variant from those of one that had its name before; pure.

A preset may be removed and added again with other weights, while Workers hold Layers of the first.
What they tell of the digest says so; more Layers than the Variant has say it as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from meshnet_common.presets import ModelPreset
from meshnet_tracker.planning.snapshot import HeldShard, VariantKey

UNKNOWN = "unknown"
"""The revision of a Shard of whose weights nothing was told."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What a served Variant consists of now."""

    digest: str
    layer_count: int


@dataclass(frozen=True, slots=True)
class Revisions:
    """The served Variants by their names."""

    served: Mapping[VariantKey, Weights]

    @classmethod
    def of(cls, presets: Iterable[ModelPreset]) -> Self:
        return cls(
            {
                VariantKey(preset.name, variant.quantization): Weights(
                    variant.digest, variant.layer_count
                )
                for preset in presets
                for variant in preset.variants
            }
        )

    def marked(self, held: Sequence[HeldShard]) -> tuple[HeldShard, ...]:
        """Give each Shard the revision that it is of: none if its Variant is what is served."""
        return tuple(map(self._marked, held))

    def _marked(self, shard: HeldShard) -> HeldShard:
        variant = shard.variant
        name = VariantKey(variant.model, variant.quantization) if variant.revision else variant
        weights = self.served.get(name)
        is_other = weights is not None and (
            shard.digest not in ("", weights.digest) or shard.shard_range.end > weights.layer_count
        )
        revision = (shard.digest or UNKNOWN) if is_other else ""
        if revision == variant.revision:
            return shard
        return replace(shard, variant=replace(variant, revision=revision))
