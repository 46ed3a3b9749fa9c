"""How much a placement lets through, Layer by Layer.

A Worker is taken to spread its speed evenly over its run, so a Layer's flow is the sum of
`speed / layers` over those who hold it, in tokens per second, and the placement carries what its
thinnest Layer does. That is a lower bound of the best flow, and exact for one chain.
"""

from collections.abc import Iterable, Sequence

from meshnet_common.shard_range import ShardRange

SAME = 1e-9
"""Relative difference below which two flows are the same: only their rounding differs."""


def layer_flows(runs: Iterable[tuple[ShardRange, float]], layer_count: int) -> list[float]:
    """Return each Layer's flow for these runs and the speeds of their Workers."""
    flows = [0.0] * layer_count
    for run, speed in runs:
        share = speed / len(run)
        for layer in run.layers:
            flows[layer] += share
    return flows


def changed_flows(
    flows: Sequence[float], changes: Iterable[tuple[ShardRange, ShardRange | None, float]]
) -> list[float]:
    """Return the flows when each Worker's run (first) becomes another or none, at its speed."""
    changed = list(flows)
    for before, after, speed in changes:
        lost = speed / len(before)
        for layer in before.layers:
            changed[layer] -= lost
        if after is not None:
            won = speed / len(after)
            for layer in after.layers:
                changed[layer] += won
    return changed


def is_better(flows: Sequence[float], than: Sequence[float]) -> bool:
    """Whether the thinnest Layer carries more, or the next thinnest if that is equal, and so on.

    A strict order: a planner that follows it upward never comes back to where it was.
    """
    for flow, other in zip(sorted(flows), sorted(than), strict=True):
        if abs(flow - other) > SAME * max(abs(flow), abs(other)):
            return flow > other
    return False
