"""Ranges on common boundaries: every Worker begins and ends at a multiple of one width.

Who meets where others meet can stand in for them, so a Route has few Hops and every Worker of a
stretch can take over from every one of the stretch before. The fastest choose first: the window
with most Layers that nobody serves, and once all are served the one where it lifts the flow of
the weakest Layers most. Widths are tried from the pool's own capacities.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.orders import Candidate, Placement, capacity

DECIMALS = 12


def widths(sizes: LayerSizes, ranked: Iterable[Candidate]) -> list[int]:
    """Give the widths worth trying: what divides the Workers' own capacities, and small ones."""
    rooms = sorted({room for each in ranked if (room := capacity(sizes, each))})
    shared = {room // parts for room in rooms for parts in (1, 2, 3, 4)}
    return sorted(each for each in shared | {1, 2, 3, 4} if 0 < each <= sizes.layer_count)


def cover_and_lift(
    sizes: LayerSizes, ranked: Sequence[Candidate], within: ShardRange, width: int
) -> Placement:
    """Place Workers in this order inside `within`, on boundaries `width` apart from its start."""
    flows = [0.0] * sizes.layer_count
    placed: Placement = {}
    for worker in ranked:
        window = _best(sizes, worker, within, width, flows)
        if window is not None:
            placed[worker.worker_id] = window
            turns = worker.turns(len(window))
            for layer in window.layers:
                flows[layer] += turns
    return placed


def _best(
    sizes: LayerSizes, worker: Candidate, within: ShardRange, width: int, flows: Sequence[float]
) -> ShardRange | None:
    windows = list(_windows(sizes, worker, within, width))
    if not windows:
        return None
    bare = list(accumulate((not flow for flow in flows), initial=0))
    typical = worker.turns(max(map(len, windows)))
    lifts = accumulate((1 / (f + 1e-9) - 1 / (f + typical) for f in flows), initial=0.0)
    lift = list(lifts)

    def rank(window: ShardRange) -> tuple[int, float, int]:
        start, end = window.start, window.end
        lifted = round((lift[end] - lift[start]) / typical, DECIMALS)
        return (bare[end] - bare[start], lifted if not bare[end] - bare[start] else 0.0, -start)

    return max(windows, key=rank)


def _windows(
    sizes: LayerSizes, worker: Candidate, within: ShardRange, width: int
) -> Iterable[ShardRange]:
    """Yield for each boundary the widest window that fits and ends at a boundary, if one does."""
    starts = range(within.start, within.end, width)
    for start in starts[:1] if worker.starts_at_zero else starts:
        end = sizes.end_within(start, within.end, worker.budget_bytes)
        if end < within.end:
            end -= (end - within.start) % width
        if start < end and not (worker.starts_at_zero and start):
            yield ShardRange(start, end)
