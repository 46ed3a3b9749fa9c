"""How Workers that follow each other share a run of Layers, so that the slowest turn is short.

A turn is the time of one token in all Layers of a Worker. Where speeds are the same however many
Layers are held, Layers are given out one by one (`water_fill`). A Worker whose speed depends on
how many it holds (weights take memory from KV Blocks) may be quicker with fewer, or even with
more: `even_turns` looks for the best slowest turn among all that its figures offer.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes, max_layers
from meshnet_tracker.planning.orders import Candidate


def water_fill(rooms: Sequence[int], speeds: Sequence[float], layers: int) -> list[int] | None:
    """Give each Layer to whom the slowest turn stays shortest with; None if the rooms are few.

    Equals take turns, so that equal Workers differ by one Layer at most.
    """
    if sum(rooms) < layers:
        return None
    taken = _below_the_level(rooms, speeds, layers)
    turns = [
        ((held + 1) / speed, index)
        for index, (held, speed) in enumerate(zip(taken, speeds, strict=True))
        if held < rooms[index]
    ]
    heapify(turns)
    for _ in range(layers - sum(taken)):
        _, index = turns[0]
        taken[index] += 1
        if taken[index] < rooms[index]:
            heapreplace(turns, ((taken[index] + 1) / speeds[index], index))
        else:
            heappop(turns)
    return taken


def _below_the_level(rooms: Sequence[int], speeds: Sequence[float], layers: int) -> list[int]:
    """Give what each gets in any case: at this level not even boundless rooms took all Layers."""
    level = max(0, layers - len(rooms)) / sum(speeds)
    return [min(room, int(level * speed)) for room, speed in zip(rooms, speeds, strict=True)]


def even_turns(rooms: Sequence[int], workers: Sequence[Candidate], layers: int) -> list[int] | None:
    """Return how many Layers each should hold, together exactly `layers`; None if rooms are few."""
    if sum(rooms) < layers:
        return None
    tables = [
        [worker.turns(count) for count in range(1, room + 1)]
        for worker, room in zip(workers, rooms, strict=True)
    ]
    offers = sorted({turns for table in tables for turns in table})
    low, high = 0, len(offers)
    while high - low > 1:
        middle = (low + high) // 2
        if sum(most_at(table, offers[middle]) for table in tables) >= layers:
            low = middle
        else:
            high = middle
    slowest = offers[low] if offers else 0.0
    counts = [most_at(table, slowest) for table in tables]
    return _given_back(tables, counts, slowest, sum(counts) - layers)


def most_at(table: Sequence[float], slowest: float) -> int:
    """Return the most Layers that a Worker holds without turning slower than this; may be none."""
    return next((count for count in range(len(table), 0, -1) if table[count - 1] >= slowest), 0)


def balanced_counts(
    sizes: LayerSizes, shard_range: ShardRange, ordered: Sequence[Candidate]
) -> list[int] | None:
    """Split a range between Workers in this order, so that the slowest turn is short.

    Returns Layers for each Worker (zero for a very slow one); None where the careful count of
    rooms, which takes every Layer for the largest, does not reach.
    """
    rooms = [max_layers(worker.budget_bytes, sizes.bytes_per_layer) for worker in ordered]
    if rooms and shard_range.start == 0:
        rooms[0] -= -(-sizes.first_bytes // sizes.bytes_per_layer)
    if rooms and shard_range.end == sizes.layer_count:
        rooms[-1] -= -(-sizes.last_bytes // sizes.bytes_per_layer)
    rooms = [min(max(0, room), len(shard_range)) for room in rooms]
    if any(worker.layer_rates for worker in ordered):
        return even_turns(rooms, ordered, len(shard_range))
    return water_fill(rooms, [worker.speed for worker in ordered], len(shard_range))


def _given_back(
    tables: Sequence[Sequence[float]], counts: list[int], slowest: float, surplus: int
) -> list[int]:
    """Take the surplus from whoever turns slowest, and never below `slowest` while others can."""
    while surplus:
        offers = [
            (slower, tables[index][count - 1], index, fewer)
            for index, count in enumerate(counts)
            for slower, fewer in _fewer(tables[index], count, slowest, surplus)
        ]
        _, _, index, fewer = min(offers)
        surplus -= counts[index] - fewer
        counts[index] = fewer
    return counts


def _fewer(
    table: Sequence[float], count: int, slowest: float, surplus: int
) -> list[tuple[bool, int]]:
    """Offer the next smaller count that keeps the pace, and failing that any smaller one."""
    least = max(0, count - surplus)
    for fewer in range(count - 1, least - 1, -1):
        if not fewer or table[fewer - 1] >= slowest:
            return [(False, fewer)]
    return [(True, count - 1)] if count > least else []
