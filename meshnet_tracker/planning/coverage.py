"""The Coverage Map: how many Workers serve each Layer of a Variant, in one Mesh Snapshot.

Two readings of the same snapshot: what a Route may use now (ready Shards), and what placement
may count on (also Shards that are ordered or loading). Draining Shards are in neither.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from meshnet_common.errors import MeshnetError
from meshnet_common.protocol.messages import CoverageRow
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import Holding, MeshSnapshot, VariantKey, WorkerView

ROUTABLE = frozenset({Holding.READY})
PLANNED = frozenset({Holding.ORDERED, Holding.LOADING, Holding.READY})


class UnknownVariantError(MeshnetError):
    """The Mesh does not serve this Variant."""


@dataclass(frozen=True, slots=True)
class CoverageMap:
    """Replicas of each Layer, by its number."""

    counts: tuple[int, ...]

    @property
    def servable(self) -> bool:
        """Whether a chain of Shards leads from Layer 0 to the last one.

        A Shard may be entered and left in the middle, so that is: whether there is no gap.
        """
        return all(self.counts)

    @property
    def replicas(self) -> int:
        """How many Workers serve the thinnest Layer."""
        return min(self.counts)

    @property
    def missing_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer, count in enumerate(self.counts) if not count)

    def rows(self) -> tuple[CoverageRow, ...]:
        """List the runs of equal replicas in Layer order; together they are all Layers."""
        return tuple(
            CoverageRow(start_layer=start, end_layer=end, worker_count=self.counts[start])
            for start, end in _runs(self.counts)
        )

    def gaps(self) -> tuple[ShardRange, ...]:
        """List the runs that nobody serves, in Layer order."""
        return gaps_of(self.counts)

    def longest_gap(self) -> ShardRange | None:
        return max(self.gaps(), key=len, default=None)


def routable_coverage(snapshot: MeshSnapshot, key: VariantKey) -> CoverageMap:
    """Count ready Shards only; raises UnknownVariantError."""
    return _coverage(snapshot, key, ROUTABLE)


def planned_coverage(snapshot: MeshSnapshot, key: VariantKey) -> CoverageMap:
    """Count Shards that are ordered, loading or ready; raises UnknownVariantError."""
    return _coverage(snapshot, key, PLANNED)


def count_layers(ranges: Iterable[ShardRange], layer_count: int) -> list[int]:
    """Count for each Layer how many of these ranges hold it."""
    changes = [0] * (layer_count + 1)
    for shard_range in ranges:
        changes[min(shard_range.start, layer_count)] += 1
        changes[min(shard_range.end, layer_count)] -= 1
    return list(accumulate(changes[:-1]))


def gaps_of(counts: Sequence[int]) -> tuple[ShardRange, ...]:
    """List the runs of Layers whose count is zero."""
    return tuple(ShardRange(start, end) for start, end in _runs(counts) if not counts[start])


def held_ranges(
    worker: WorkerView, key: VariantKey, holdings: frozenset[Holding]
) -> list[ShardRange]:
    """Join the Layers of one Variant that a Worker holds in one of these ways into runs."""
    runs: list[ShardRange] = []
    for shard_range in sorted(
        shard.shard_range
        for shard in worker.held
        if shard.variant == key and shard.holding in holdings
    ):
        if runs and runs[-1].touches(shard_range):
            runs[-1] = runs[-1].union(shard_range)
        else:
            runs.append(shard_range)
    return runs


def _coverage(snapshot: MeshSnapshot, key: VariantKey, holdings: frozenset[Holding]) -> CoverageMap:
    variant = dict(snapshot.variants()).get(key)
    if variant is None:
        raise UnknownVariantError(f"{key.model} {key.quantization}")
    ranges = (run for worker in snapshot.workers for run in held_ranges(worker, key, holdings))
    return CoverageMap(tuple(count_layers(ranges, variant.layer_count)))


def _runs(counts: Sequence[int]) -> Iterable[tuple[int, int]]:
    position = 0
    for _, run in groupby(counts):
        length = sum(1 for _ in run)
        yield position, position + length
        position += length
