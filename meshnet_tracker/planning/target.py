"""The placement that a pool of Workers would have if they began anew.

Many are made, each by a simple rule, and the one that scores best is taken (`score.py`); where
Workers have measured what that needs, the best few are tried out (`trial.py`). A rule says how far
each Worker is filled, so that no one of them is much slower, or has room for much fewer Sessions,
than the others; on which common boundaries they meet; and which Localities hold which stretch of
Layers. Whole copies are always among them. The work is bounded: `MOST_SEARCHED` Workers of 80
Layers take well under a second.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, islice, pairwise, permutations, product
from math import prod

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.boundaries import cover_and_lift, widths
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.orders import Candidate, Placement, capacity
from meshnet_tracker.planning.placement import fresh_placement
from meshnet_tracker.planning.score import score_of, sessions_alone
from meshnet_tracker.planning.shares import most_at
from meshnet_tracker.planning.trial import may_be_tried, tried

MOST_SEARCHED = 64
"""With more Workers whole copies are enough to choose from, and quick to find."""
MOST_TRIED = 2_000
"""Of so many combinations of ranges each is looked at."""
FILLINGS = 6
"""From filled to the brim down to just enough for all Layers once."""
MOST_WIDTHS = 6
FEW_WIDTHS = 2
"""So many widths are tried for each way to divide the Layers between Localities."""
MOST_ORDERS = 6
"""So many orders of Localities along the Layers are tried."""

DIVIDED_WORKERS = 9_000
"""So many over the square of the Workers' number are the ways to divide Layers that are tried."""
FINALISTS = 20
"""So many placements are tried out, those that score best."""

Stretches = dict[str, ShardRange]
"""The Layers that each Locality serves."""


def target_placement(sizes: LayerSizes, candidates: Iterable[Candidate]) -> Placement:
    """Return the best placement found; the order of the candidates changes nothing.

    Where nobody says how its speed depends on the Layers that it holds, these are whole copies.
    """
    pool = sorted(candidates, key=lambda worker: worker.worker_id)
    workers = {worker.worker_id: worker for worker in pool}
    offers = [fresh_placement(sizes, pool)]
    if len(pool) <= MOST_SEARCHED and any(worker.layer_rates for worker in pool):
        offers += _searched(sizes, pool)
        offers += _all_of_few(sizes, pool)
    different = {tuple(sorted(placed.items())): placed for placed in offers}
    ranked = sorted(
        different.values(), key=lambda placed: score_of(sizes, workers, placed), reverse=True
    )
    if not may_be_tried(sizes, pool):
        return ranked[0]
    return max(ranked[:FINALISTS], key=lambda placed: tried(sizes, workers, placed))


def _searched(sizes: LayerSizes, pool: Sequence[Candidate]) -> Iterator[Placement]:
    for workers in _fillings(sizes, pool):
        steps = widths(sizes, workers)[:MOST_WIDTHS]
        for width in steps:
            yield cover_and_lift(sizes, workers, sizes.whole, width)
        for stretches in _divisions(sizes, workers):
            for width in steps[:FEW_WIDTHS]:
                yield _placed(sizes, workers, stretches, width)


def _all_of_few(sizes: LayerSizes, pool: Sequence[Candidate]) -> Iterator[Placement]:
    """Yield every placement of all Workers that covers all Layers, if there are few to look at."""
    runs = [_runs(sizes, worker) for worker in pool]
    if not all(runs) or prod(map(len, runs)) > MOST_TRIED:
        return
    every_layer = (1 << sizes.layer_count) - 1
    for chosen in product(*runs):
        held = 0
        for run in chosen:
            held |= (1 << run.end) - (1 << run.start)
        if held == every_layer:
            yield {worker.worker_id: run for worker, run in zip(pool, chosen, strict=True)}


def _runs(sizes: LayerSizes, worker: Candidate) -> list[ShardRange]:
    starts = range(1 if worker.starts_at_zero else sizes.layer_count)
    return [
        ShardRange(start, end)
        for start in starts
        for end in range(
            start + 1, sizes.end_within(start, sizes.layer_count, worker.budget_bytes) + 1
        )
    ]


def _placed(
    sizes: LayerSizes, workers: Sequence[Candidate], stretches: Stretches, width: int
) -> Placement:
    """Place each Locality's Workers in its stretch, as if there were no others."""
    placed: Placement = {}
    for name, stretch in stretches.items():
        members = [worker for worker in workers if worker.locality == name]
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


def _rooms(sizes: LayerSizes, workers: Iterable[Candidate]) -> dict[str, int]:
    """Count the Layers that each Locality can hold, the roomiest first."""
    rooms: dict[str, int] = defaultdict(int)
    for worker in workers:
        rooms[worker.locality] += capacity(sizes, worker)
    return dict(sorted(rooms.items(), key=lambda each: (-each[1], each[0])))


def _divisions(sizes: LayerSizes, workers: Sequence[Candidate]) -> list[Stretches]:
    """Divide the Layers between Localities in some ways, fewer the more Workers there are."""
    most = max(2, DIVIDED_WORKERS // len(workers) ** 2)
    orders = list(islice(_one_after_another(sizes, workers), most // 2))
    return [*orders, *islice(_forks(sizes, workers), most - len(orders))]


def _one_after_another(sizes: LayerSizes, workers: Sequence[Candidate]) -> Iterator[Stretches]:
    """Divide the Layers between all Localities, by how many each can hold."""
    rooms = _rooms(sizes, workers)
    total = sum(rooms.values())
    if len(rooms) < 2 or total < sizes.layer_count:
        return
    for order in islice(permutations(rooms), MOST_ORDERS):
        filled = accumulate((rooms[name] for name in order), initial=0)
        edges = [round(each * sizes.layer_count / total) for each in filled]
        yield {
            name: ShardRange(start, end)
            for name, (start, end) in zip(order, pairwise(edges), strict=True)
            if start < end
        }


def _forks(sizes: LayerSizes, workers: Sequence[Candidate]) -> Iterator[Stretches]:
    """Let one Locality begin for several others, each of which can do all of the rest alone."""
    rooms = _rooms(sizes, workers)
    for first in list(rooms)[:MOST_ORDERS]:
        others = {name: room for name, room in rooms.items() if name != first}
        latest = min(rooms[first], sizes.layer_count - 1)
        able = [room for room in others.values() if latest + room >= sizes.layer_count]
        if latest < 1 or not able:
            continue
        earliest = max(1, sizes.layer_count - min(able))
        for edge in sorted({earliest, (earliest + latest) // 2, latest}):
            rest = ShardRange(edge, sizes.layer_count)
            able_too = {name: rest for name, room in others.items() if room >= len(rest)}
            yield {first: ShardRange(0, edge), **able_too}
