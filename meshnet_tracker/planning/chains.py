"""Chains: Workers whose runs, one behind the other, hold every Layer.

A placement is read as as many chains as it contains, those with the least overlap first, so that
exact copies are seen as such and an overlap is seen only where it ties a chain together. Boundary
moves happen between members of one chain that follow each other.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.holders import Holder

Chain = tuple[Holder, ...]


@dataclass(frozen=True, slots=True, order=True)
class _Link:
    """The best chain up to some Layer: compared by overlapping Layers, then by Hops."""

    overlap: int
    hops: int
    run: ShardRange = field(compare=False)
    previous_end: int = field(compare=False)


def chains_of(holders: Iterable[Holder], layer_count: int) -> list[Chain]:
    """Take chains out until none is left; in each the fastest Workers that fit go first."""
    by_run: dict[ShardRange, list[Holder]] = defaultdict(list)
    for holder in sorted(holders, key=lambda h: (h.worker.speed, h.worker_id)):
        by_run[holder.run].append(holder)
    chains = []
    while runs := _thinnest_chain(by_run, layer_count):
        chains.append(tuple(by_run[run].pop() for run in runs))
        for run in runs:
            if not by_run[run]:
                del by_run[run]
    return chains


def _thinnest_chain(runs: Iterable[ShardRange], layer_count: int) -> list[ShardRange]:
    """Find the runs that cover all Layers with least overlap, then fewest Hops; empty if none."""
    links: dict[int, _Link] = {}
    reached = _Reached()
    ordered = sorted(runs, key=lambda run: (run.end, run.start))
    for end, ending in groupby(ordered, key=lambda run: run.end):
        best = min((link for run in ending if (link := reached.link_to(run))), default=None)
        if best is not None:
            links[end] = best
            reached.push(end, best)
    chain = []
    end = layer_count
    while end in links:
        chain.append(links[end].run)
        end = links[end].previous_end
    return chain[::-1]


class _Reached:
    """The ends that chains reach so far, of which each may be the best one to go on from.

    Those from which a later end is better for every run that follows are left out, so that the
    best one behind some Layer is simply the first.
    """

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.links: list[tuple[int, int]] = []

    def push(self, end: int, link: _Link) -> None:
        cost = (link.overlap + end, link.hops)
        while self.links and self.links[-1] > cost:
            self.ends.pop()
            self.links.pop()
        self.ends.append(end)
        self.links.append(cost)

    def link_to(self, run: ShardRange) -> _Link | None:
        if run.start == 0:
            return _Link(0, 1, run, 0)
        index = bisect_left(self.ends, run.start)
        if index == len(self.ends):
            return None
        overlap, hops = self.links[index]
        return _Link(overlap - run.start, hops + 1, run, self.ends[index])
