"""How much a placement lets through, Layer by Layer.

Two readings. `layer_flows`: a Worker spreads its speed evenly over its run, so a Layer's flow is
the sum of `speed / layers` over those who hold it, in tokens per second, and the placement carries
what its thinnest Layer does: a lower bound, exact for one chain. `most_flow`: a Worker runs of its
Layers what others leave over, and the placement carries what the linear program of all says.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

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


def most_flow(runs: Iterable[tuple[ShardRange, float]], layer_count: int) -> float:
    """Return the largest T for which the Workers' speeds, spread at will, give T to every Layer.

    Layer by Layer whoever ends first serves first, which serves T if that can be served at all.
    Where it falls short it names Layers that share too few Workers: what these can do for them is
    the next T to try. Each is below the one before and is never below the answer.
    """
    supplies = [(run, speed) for run, speed in runs if run.start < layer_count]
    stretches = _Stretches.of(supplies, layer_count)
    flow = sum(speed for _, speed in supplies) / layer_count
    while flow > 0:
        bound = stretches.shortfall(flow)
        if bound is None or bound >= flow:
            return flow
        flow = bound
    return 0.0


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Layers between which no run begins or ends, as one; runs count stretches, by their first."""

    lengths: list[int]
    beginning: list[list[tuple[int, int]]]
    speeds: list[float]
    runs: list[tuple[int, int]]

    @classmethod
    def of(cls, supplies: Sequence[tuple[ShardRange, float]], layer_count: int) -> "_Stretches":
        edges = {0, layer_count}
        for run, _ in supplies:
            edges.add(run.start)
            edges.add(min(run.end, layer_count))
        ordered = sorted(edges)
        place = {edge: index for index, edge in enumerate(ordered)}
        lengths = [after - edge for edge, after in pairwise(ordered)]
        beginning: list[list[tuple[int, int]]] = [[] for _ in lengths]
        runs = []
        for index, (run, _) in enumerate(supplies):
            start, end = place[run.start], place[min(run.end, layer_count)]
            beginning[start].append((end, index))
            runs.append((start, end))
        return cls(lengths, beginning, [speed for _, speed in supplies], runs)

    def shortfall(self, flow: float) -> float | None:
        """Try to serve this flow; return the most that the Layers which fall short can get."""
        left = list(self.speeds)
        gave: list[list[int]] = [[] for _ in left]
        serving: list[tuple[int, int]] = []
        for stretch, length in enumerate(self.lengths):
            for each in self.beginning[stretch]:
                heappush(serving, each)
            missing = flow * length
            enough = missing * SAME
            while missing > enough:
                while serving and serving[0][0] <= stretch:
                    heappop(serving)
                if not serving:
                    return self._bound(stretch, gave)
                index = serving[0][1]
                given = min(left[index], missing)
                gave[index].append(stretch)
                left[index] -= given
                missing -= given
                if left[index] <= 0:
                    heappop(serving)
        return None

    def _bound(self, stretch: int, gave: Sequence[Sequence[int]]) -> float:
        """Divide what the Workers of a stretch, and of all that they gave to, can do for these."""
        short, pending, helpers = {stretch}, [stretch], set[int]()
        while pending:
            layer = pending.pop()
            for index, (start, end) in enumerate(self.runs):
                if start <= layer < end and index not in helpers:
                    helpers.add(index)
                    pending += [each for each in gave[index] if each not in short]
                    short.update(gave[index])
        speed = sum(self.speeds[index] for index in sorted(helpers))
        return speed / sum(self.lengths[each] for each in short)
