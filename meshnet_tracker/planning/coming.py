"""What is on its way on a Worker: how far a run is there, and what may be called off for a gap."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.coverage import ROUTABLE, held_ranges
from meshnet_tracker.planning.snapshot import HeldShard, Holding, VariantKey, WorkerView

ON_ITS_WAY = frozenset({Holding.ORDERED, Holding.LOADING})


def ready_and_coming(
    worker: WorkerView, key: VariantKey, run: ShardRange
) -> tuple[ShardRange | None, ShardRange | None]:
    """Split a planned run into what is ready and what is still to come beside it."""
    for ready in held_ranges(worker, key, ROUTABLE):
        if run.contains(ready):
            return ready, next(iter(run.minus(ready)), None)
    return None, run


def callable_off(
    worker: WorkerView, ready: Mapping[VariantKey, Sequence[int]], given_up: Collection[VariantKey]
) -> Iterator[HeldShard]:
    """Yield what it need not load now: what others have ready, and what is given up.

    Only of the Variants whose counts are given.
    """
    for shard in worker.held:
        counts = ready.get(shard.variant)
        if counts is not None and shard.holding in ON_ITS_WAY:
            layers = shard.shard_range.layers
            if shard.variant in given_up or all(counts[layer] for layer in layers):
                yield shard
