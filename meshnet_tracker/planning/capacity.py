"""How many Layers of a Variant a Worker can hold, in bytes and whole Layers.

Integers only: a Shard either fits or it does not, on every Tracker alike. The headroom of the
policy is kept for KV Blocks and is never planned for weights.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Self

from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import HeldShard, PlannerPolicy, VariantKey


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Bytes of any run of one Variant in constant time; `sums[n]` is that of the first n Layers.

    `first_bytes` and `last_bytes` come on top for a run that starts at 0 or ends at the last
    Layer: embeddings and output head.
    """

    sums: tuple[int, ...]
    first_bytes: int
    last_bytes: int
    bytes_per_layer: int
    smallest_layer_bytes: int
    kv_bytes_per_layer: int = 0
    """What one token's keys and values take on one Layer."""

    @classmethod
    def of(cls, variant: Variant) -> Self:
        return cls(
            (0, *accumulate(variant.layer_bytes)),
            variant.embedding_bytes,
            variant.head_bytes,
            variant.bytes_per_layer,
            min(variant.layer_bytes),
            variant.kv_bytes_per_token_per_layer,
        )

    @property
    def layer_count(self) -> int:
        return len(self.sums) - 1

    @property
    def even(self) -> bool:
        """Whether all Layers are of the same size."""
        return self.smallest_layer_bytes == self.bytes_per_layer

    @property
    def whole(self) -> ShardRange:
        return ShardRange(0, self.layer_count)

    def mirrored(self) -> Self:
        """Count the Layers from the other end, so that a push is written for one side only."""
        total = self.sums[-1]
        sums = tuple(total - size for size in reversed(self.sums))
        return replace(self, sums=sums, first_bytes=self.last_bytes, last_bytes=self.first_bytes)

    def range_bytes(self, shard_range: ShardRange) -> int:
        start, end = shard_range.start, min(shard_range.end, self.layer_count)
        size = self.sums[end] - self.sums[min(start, end)]
        return size + self._ends_bytes(start, shard_range.end)

    def end_within(self, start: int, limit: int, budget_bytes: int) -> int:
        """Return the furthest end up to `limit` that fits from `start`; `start` if none does."""
        free_bytes = budget_bytes - (self.first_bytes if start == 0 else 0)
        end = min(bisect_right(self.sums, self.sums[start] + free_bytes) - 1, limit)
        if end == self.layer_count and self.range_bytes_of(start, end) > budget_bytes:
            end -= 1
        return max(end, start)

    def start_within(self, end: int, limit: int, budget_bytes: int) -> int:
        """Return the earliest start from `limit` on that fits up to `end`; `end` if none does."""
        free_bytes = budget_bytes - (self.last_bytes if end == self.layer_count else 0)
        start = max(bisect_left(self.sums, self.sums[end] - free_bytes), limit)
        if start == 0 and self.range_bytes_of(start, end) > budget_bytes:
            start = 1
        return min(start, end)

    def range_bytes_of(self, start: int, end: int) -> int:
        """Return `range_bytes`, of a run that may be empty."""
        return self.range_bytes(ShardRange(start, end)) if start < end else 0

    def _ends_bytes(self, start: int, end: int) -> int:
        first = self.first_bytes if start == 0 else 0
        return first + (self.last_bytes if end >= self.layer_count else 0)


def usable_bytes(vram_bytes: int, policy: PlannerPolicy) -> int:
    """Return what of the Budget may hold weights: all but the headroom, never below zero."""
    if policy.headroom_bytes is not None:
        return max(0, vram_bytes - policy.headroom_bytes)
    return max(0, vram_bytes - round(vram_bytes * policy.headroom_share))


def max_layers(available_bytes: int, bytes_per_layer: int) -> int:
    """Return how many Layers fit, embeddings and output head ignored."""
    return max(0, available_bytes) // bytes_per_layer


def smallest_layers(presets: Iterable[ModelPreset]) -> Mapping[str, int]:
    """Return, by quantization, the bytes of the smallest Layer that there is."""
    smallest: dict[str, int] = {}
    for preset in presets:
        for variant in preset.variants:
            least = min(variant.layer_bytes)
            known = smallest.get(variant.quantization, least)
            smallest[variant.quantization] = min(least, known)
    return smallest


def held_bytes(shards: Iterable[HeldShard], sizes: Mapping[VariantKey, LayerSizes]) -> int | None:
    """Add up what these Shards take; None if one is of a Variant that is served no more.

    Such a Shard has no known size, so nothing may be planned beside it.
    """
    total = 0
    for shard in shards:
        known = sizes.get(shard.variant)
        if known is None:
            return None
        total += known.range_bytes(shard.shard_range)
    return total
