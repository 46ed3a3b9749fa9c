"""The placement that a pool of Workers would have if they began anew.

Many are made, each by a simple rule, and the one that scores best is taken (`score.py`). A rule
says how far each Worker is filled, so that no one of them is much slower, or has room for much
fewer Sessions, than the others; on which common boundaries they meet; and which Localities hold
which stretch of Layers. Whole copies are always among them. The work is bounded: `MOST_SEARCHED`
Workers of 80 Layers take well under a second.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice, pairwise, permutations

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.boundaries import cover_and_lift, widths
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.orders import Candidate, Placement, capacity
from meshnet_tracker.planning.placement import fresh_placement
from meshnet_tracker.planning.score import score_of, sessions_alone
from meshnet_tracker.planning.shares import most_at

MOST_SEARCHED = 64
"""With more Workers whole copies are enough to choose from, and quick to find."""
FILLINGS = 6
"""From filled to the brim down to just enough for all Layers once."""
MOST_WIDTHS = 6
MOST_ORDERS = 6
"""So many orders of Localities along the Layers are tried."""


def target_placement(sizes: LayerSizes, candidates: Iterable[Candidate]) -> Placement:
    """Return the best placement found; the order of the candidates changes nothing.

    Where nobody says how its speed depends on the Layers that it holds, these are whole copies.
    """
    pool = sorted(candidates, key=lambda worker: worker.worker_id)
    workers = {worker.worker_id: worker for worker in pool}
    offers = [fresh_placement(sizes, pool)]
    if len(pool) <= MOST_SEARCHED and any(worker.layer_rates for worker in pool):
        offers += _searched(sizes, pool)
    return max(offers, key=lambda placed: score_of(sizes, workers, placed))


def _searched(sizes: LayerSizes, pool: Sequence[Candidate]) -> Iterator[Placement]:
    whole = {worker.locality: sizes.whole for worker in pool}
    for workers in _fillings(sizes, pool):
        steps = widths(sizes, workers)[:MOST_WIDTHS]
        for stretches in (whole, *_stretches(sizes, workers)):
            for width in steps:
                yield _placed(sizes, workers, stretches, width)


def _placed(
    sizes: LayerSizes, workers: Sequence[Candidate], stretches: Mapping[str, ShardRange], width: int
) -> Placement:
    """Place each Locality's Workers in its stretch; those with the same one together."""
    together: dict[ShardRange, list[Candidate]] = defaultdict(list)
    for worker in workers:
        if worker.locality in stretches:
            together[stretches[worker.locality]].append(worker)
    placed: Placement = {}
    for stretch, members in together.items():
        placed |= cover_and_lift(sizes, members, stretch, width)
    return placed


def _fillings(sizes: LayerSizes, pool: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Yield the Workers, fastest first, with what each may fill; by speed and by Sessions."""
    rules: tuple[Callable[[Candidate, int], float], ...] = (
        Candidate.turns,
        lambda worker, layers: sessions_alone(sizes, worker, layers),
    )
    for rule in rules if sizes.kv_bytes_per_layer else rules[:1]:
        tables = [
            [rule(worker, count) for count in range(1, capacity(sizes, worker) + 1)]
            for worker in pool
        ]
        for counts in _spread(tables, sizes.layer_count):
            yield _filled(sizes, pool, counts)


def _spread(tables: Sequence[Sequence[float]], layers: int) -> Iterator[list[int]]:
    """Yield how many Layers each takes, at paces for which that is more and more in total."""
    paces = sorted({pace for table in tables for pace in table})
    enough = [
        counts
        for pace in paces
        if sum(counts := [most_at(table, pace) for table in tables]) >= layers
    ]
    totals = [sum(counts) for counts in enough]
    if not totals:
        return
    chosen: set[int] = set()
    for index in range(FILLINGS):
        wanted = totals[0] + (totals[-1] - totals[0]) * index / (FILLINGS - 1)
        nearest = min(range(len(totals)), key=lambda each: abs(totals[each] - wanted))
        if nearest not in chosen:
            chosen.add(nearest)
            yield enough[nearest]


def _filled(sizes: LayerSizes, pool: Sequence[Candidate], counts: Sequence[int]) -> list[Candidate]:
    """Let each lend no more than so many Layers take, and put the fastest first."""

    def rank(worker: Candidate) -> tuple[float, WorkerId]:
        return -worker.rate(max(1, capacity(sizes, worker))), worker.worker_id

    lent = [
        replace(worker, budget_bytes=min(worker.budget_bytes, count * sizes.bytes_per_layer))
        for worker, count in zip(pool, counts, strict=True)
        if count
    ]
    return sorted(lent, key=rank)


def _stretches(sizes: LayerSizes, workers: Sequence[Candidate]) -> Iterator[dict[str, ShardRange]]:
    """Yield ways to divide the Layers between Localities, by how many each can hold."""
    rooms: dict[str, int] = defaultdict(int)
    for worker in workers:
        rooms[worker.locality] += capacity(sizes, worker)
    total = sum(rooms.values())
    if len(rooms) < 2 or total < sizes.layer_count:
        return
    largest_first = sorted(rooms, key=lambda name: (-rooms[name], name))
    for order in islice(permutations(largest_first), MOST_ORDERS):
        filled = accumulate((rooms[name] for name in order), initial=0)
        edges = [round(each * sizes.layer_count / total) for each in filled]
        yield {
            name: ShardRange(start, end)
            for name, (start, end) in zip(order, pairwise(edges), strict=True)
            if start < end
        }
