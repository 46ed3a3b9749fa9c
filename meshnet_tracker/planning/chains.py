"""Chains: Workers whose runs, one behind the other, hold every Layer.

A placement is read as as many chains as it contains, those with the least overlap first, so that
exact copies are seen as such and an overlap is seen only where it ties a chain together. Boundary
moves happen between members of one chain that follow each other.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
    for run in sorted(runs, key=lambda run: (run.end, run.start)):
        best = min(_links_to(run, links), default=None)
        if best is not None and (run.end not in links or best < links[run.end]):
            links[run.end] = best
    chain = []
    end = layer_count
    while end in links:
        chain.append(links[end].run)
        end = links[end].previous_end
    return chain[::-1]


def _links_to(run: ShardRange, links: Mapping[int, _Link]) -> Iterable[_Link]:
    if run.start == 0:
        yield _Link(0, 1, run, 0)
    for end in range(max(run.start, 1), run.end):
        if end in links:
            yield _Link(links[end].overlap + end - run.start, links[end].hops + 1, run, end)
