"""Who comes first and who last: the order of Workers along the Layers.

Embeddings and output head cost whoever holds the first and the last Layer, and what that costs in
Layers depends on the bytes that a Worker has left over. Largest first is kept wherever it covers
the range; else the Workers that lose least at either end are tried there. With Layers of equal
size that finds an order that covers, if there is one; where sizes differ and the Workers are few,
`fewest_order` looks at all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes, max_layers

Placement = dict[WorkerId, ShardRange]

MOST_SETS = 1024
"""How many sets of Workers are looked at where Layers differ in size; beyond it none."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A Worker with empty hands, and the bytes that it has for one Variant."""

    worker_id: WorkerId
    budget_bytes: int
    speed: float
    starts_at_zero: bool = False
    layer_rates: tuple[float, ...] = ()
    """Layer-tokens per second when it holds 1, 2, ... Layers; empty: `speed`, however many."""
    locality: str = ""
    memory_bytes: int = 0
    """All that it lends, weights and KV Blocks together; 0: nothing but the budget is known."""
    prefill_speed: float = 0.0
    """Layer-tokens per second of prompts; 0 is not measured."""

    def rate(self, layers: int) -> float:
        """Return its layer-tokens per second when it holds so many Layers."""
        if not self.layer_rates:
            return self.speed
        return self.layer_rates[min(layers, len(self.layer_rates)) - 1]

    def turns(self, layers: int) -> float:
        """Return how many tokens per second it can run through all of so many Layers."""
        return self.rate(layers) / layers


def capacity(sizes: LayerSizes, worker: Candidate) -> int:
    """Count the Layers that it can hold, whichever they are, but for both ends."""
    return min(max_layers(worker.budget_bytes, sizes.bytes_per_layer), sizes.layer_count)


def first_reach(sizes: LayerSizes, worker: Candidate) -> int:
    """Count the Layers that it can hold from Layer 0 on, embeddings included."""
    return sizes.end_within(0, sizes.layer_count, worker.budget_bytes)


def last_reach(sizes: LayerSizes, worker: Candidate) -> int:
    """Count the Layers that it can hold up to the last one, output head included."""
    return sizes.layer_count - sizes.start_within(sizes.layer_count, 0, worker.budget_bytes)


def fill(sizes: LayerSizes, shard_range: ShardRange, ordered: Iterable[Candidate]) -> Placement:
    """Fill the Workers completely, in this order, as far as it goes."""
    placed: Placement = {}
    position = shard_range.start
    for worker in ordered:
        end = sizes.end_within(position, shard_range.end, worker.budget_bytes)
        if end > position:
            placed[worker.worker_id] = ShardRange(position, end)
            position = end
    return placed


def orders(sizes: LayerSizes, ranked: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    """Yield the orders worth trying, largest first before all; who is bound to Layer 0 leads."""
    ordered = sorted(ranked, key=lambda worker: not worker.starts_at_zero)
    if len({worker.locality for worker in ordered}) > 1:
        yield _by_locality(ordered)
    yield ordered
    if len(ordered) > 1:
        yield _with_a_tail(sizes, ordered)
        ends = (
            (first, last) for first in _firsts(sizes, ordered) for last in _lasts(sizes, ordered)
        )
        for first, last in ends:
            if first != last:
                middle = (worker for worker in ordered if worker not in (first, last))
                yield [first, *middle, last]


def fewest_order(
    sizes: LayerSizes, shard_range: ShardRange, ranked: Sequence[Candidate]
) -> list[Candidate] | None:
    """Find the fewest Workers that cover a range of uneven Layers; None if none do, or too many.

    Of each set of Workers only the furthest end counts that some order of it reaches, and Workers
    with equal Budgets are one kind, so that sets are counts.
    """
    leading = [worker for worker in ranked if worker.starts_at_zero]
    kinds: dict[int, list[Candidate]] = {}
    for worker in ranked:
        if not worker.starts_at_zero:
            kinds.setdefault(worker.budget_bytes, []).append(worker)
    if prod(len(kind) + 1 for kind in kinds.values()) > MOST_SETS:
        return None
    begun = fill(sizes, shard_range, leading)
    start = max((placed.end for placed in begun.values()), default=shard_range.start)
    budgets = _fewest_budgets(sizes, ShardRange(start, shard_range.end), kinds)
    if budgets is None:
        return None
    left = {budget: iter(kind) for budget, kind in kinds.items()}
    return [*leading, *(next(left[budget]) for budget in budgets)]


def _fewest_budgets(
    sizes: LayerSizes, shard_range: ShardRange, kinds: dict[int, list[Candidate]]
) -> tuple[int, ...] | None:
    reached: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {(): (shard_range.start, ())}
    while reached:
        further: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {}
        for position, used in reached.values():
            for budget, kind in kinds.items():
                end = sizes.end_within(position, shard_range.end, budget)
                if end == position or used.count(budget) == len(kind):
                    continue
                if end == shard_range.end:
                    return (*used, budget)
                members = tuple(sorted((*used, budget)))
                if members not in further or end > further[members][0]:
                    further[members] = (end, (*used, budget))
        reached = further
    return None


def _by_locality(ordered: Sequence[Candidate]) -> list[Candidate]:
    """Keep Workers of one Locality together, in the order of the first of each."""
    places: dict[str, int] = {}
    for worker in ordered:
        places.setdefault(worker.locality, len(places))
    return sorted(ordered, key=lambda worker: places[worker.locality])


def _with_a_tail(sizes: LayerSizes, ordered: list[Candidate]) -> list[Candidate]:
    """Put the smallest Worker that can hold the output head last."""
    for index in range(len(ordered) - 1, -1, -1):
        if last_reach(sizes, ordered[index]):
            return [*ordered[:index], *ordered[index + 1 :], ordered[index]]
    return ordered


def _firsts(sizes: LayerSizes, ordered: Sequence[Candidate]) -> list[Candidate]:
    """Give the two that lose fewest Layers to the embeddings; the larger among equals."""
    if ordered[0].starts_at_zero:
        return [ordered[0]]
    able = [worker for worker in ordered if first_reach(sizes, worker)]
    return sorted(able, key=lambda each: capacity(sizes, each) - first_reach(sizes, each))[:2]


def _lasts(sizes: LayerSizes, ordered: Sequence[Candidate]) -> list[Candidate]:
    """Give the two that lose fewest Layers to the output head; the smaller among equals."""
    able = [worker for worker in reversed(ordered) if last_reach(sizes, worker)]
    return sorted(able, key=lambda each: capacity(sizes, each) - last_reach(sizes, each))[:2]
