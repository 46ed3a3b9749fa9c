"""Fresh placement: who takes which Layers, when nothing is held yet.

A run of Layers goes to the largest Workers first, in Layer order, unless `orders.py` finds that
others cover more at its ends. With room to spare the slowest turn is kept short (water-filling);
without it everybody is filled completely and the gap is left at the end. Nothing here knows what a
Worker holds: `gaps.py` and `moves.py` do.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.orders import (
    Candidate,
    Placement,
    capacity,
    fewest_order,
    fill,
    first_reach,
    orders,
)
from meshnet_tracker.planning.score import score_of
from meshnet_tracker.planning.shares import balanced_counts

MOST_SCORED = 128
"""Of more Workers the placement with more copies is taken; to score it would take too long."""


def fill_range(
    sizes: LayerSizes, shard_range: ShardRange, candidates: Iterable[Candidate]
) -> Placement:
    """Cover a range with the fewest Workers, largest first; if all are too few, as far as it goes.

    The Layers that are placed are one run from the start of the range.
    """
    ranked = _helpful(sizes, shard_range, candidates)
    best, filled = _furthest(sizes, shard_range, ranked)
    if not _covers(filled, shard_range):
        return _cover_uneven(sizes, shard_range, ranked) or filled
    fewest, enough = 1, len(ranked)
    while fewest < enough:
        middle = (fewest + enough) // 2
        ordered, filled = _furthest(sizes, shard_range, ranked[:middle])
        if _covers(filled, shard_range):
            best, enough = ordered, middle
        else:
            fewest = middle + 1
    return _shared_out(sizes, shard_range, best)


def fresh_placement(sizes: LayerSizes, candidates: Iterable[Candidate]) -> Placement:
    """Place all Layers as often as the Workers allow: as many whole copies as possible.

    Copies inside one Locality come first where that costs nothing else. The work grows with
    n log n; `target.py` looks longer for something better.
    """
    ranked = _largest_first(sizes, candidates)
    placed = _whole_copies(sizes, ranked)
    if len({worker.locality for worker in ranked}) < 2:
        return placed
    apart = _copies_by_locality(sizes, ranked)
    if len(ranked) > MOST_SCORED:
        return max((apart, placed), key=_layers)
    workers = {worker.worker_id: worker for worker in ranked}
    return max((apart, placed), key=lambda offer: score_of(sizes, workers, offer))


def _copies_by_locality(sizes: LayerSizes, ranked: Sequence[Candidate]) -> Placement:
    """Let every Locality that can hold a copy hold its own, and the others share theirs."""
    near: dict[str, list[Candidate]] = defaultdict(list)
    for worker in ranked:
        near[worker.locality].append(worker)
    placed: Placement = {}
    others: list[Candidate] = []
    for _, workers in sorted(near.items()):
        copies = _whole_copies(sizes, workers)
        if _layers(copies) >= sizes.layer_count:
            placed |= copies
        else:
            others += workers
    shared = _whole_copies(sizes, _largest_first(sizes, others))
    return placed | shared if not placed or _layers(shared) >= sizes.layer_count else placed


def _whole_copies(sizes: LayerSizes, ranked: Sequence[Candidate]) -> Placement:
    """Make as many whole copies as there can be; if none can, cover as far as it goes.

    A Worker that its copy has no use for is left out; so is everybody else of the copy when one
    holds the whole Variant alone, since no Hop is cheaper than none.
    """
    placed = _most_whole_copies(sizes, ranked)
    if placed is not None:
        return placed
    alone = _group_order(sizes, _helpful(sizes, sizes.whole, ranked))
    if alone is None:
        return fill_range(sizes, sizes.whole, ranked)
    return _shared_out(sizes, sizes.whole, alone)


def _most_whole_copies(sizes: LayerSizes, ranked: Sequence[Candidate]) -> Placement | None:
    """Try fewer copies in longer and longer steps, then look between the last two tries."""
    copies = failed = _most_copies(sizes, ranked) + 1
    step, found = 1, None
    while found is None and copies > 2:
        failed = copies
        copies = max(2, copies - step)
        step *= 2
        found = _group_orders(sizes, _deal(sizes, ranked, copies))
    while found is not None and failed - copies > 1:
        middle = (failed + copies) // 2
        more = _group_orders(sizes, _deal(sizes, ranked, middle))
        if more is None:
            failed = middle
        else:
            found, copies = more, middle
    if found is None:
        return None
    placed: Placement = {}
    for ordered in found:
        placed |= _shared_out(sizes, sizes.whole, ordered)
    return placed


def _largest_first(sizes: LayerSizes, candidates: Iterable[Candidate]) -> list[Candidate]:
    def rank(worker: Candidate) -> tuple[int, float, WorkerId]:
        return (-capacity(sizes, worker), -worker.speed, worker.worker_id)

    able = (worker for worker in candidates if worker.budget_bytes >= sizes.smallest_layer_bytes)
    return sorted(able, key=rank)


def _capacity_of_all(sizes: LayerSizes, workers: Iterable[Candidate]) -> int:
    return sum(capacity(sizes, worker) for worker in workers)


def _helpful(
    sizes: LayerSizes, shard_range: ShardRange, candidates: Iterable[Candidate]
) -> list[Candidate]:
    """Rank those that can take a part of this range; one at most may be bound to Layer 0."""
    ranked = _largest_first(sizes, candidates)
    allowed = _bound(sizes, ranked)[:1] if shard_range.start == 0 else []
    return [worker for worker in ranked if not worker.starts_at_zero or worker in allowed]


def _bound(sizes: LayerSizes, ranked: Iterable[Candidate]) -> list[Candidate]:
    """Give those that are bound to Layer 0 and fit it, furthest reach first."""
    bound = [each for each in ranked if each.starts_at_zero and first_reach(sizes, each)]
    return sorted(bound, key=lambda worker: -first_reach(sizes, worker))


def _furthest(
    sizes: LayerSizes, shard_range: ShardRange, ranked: Sequence[Candidate]
) -> tuple[Sequence[Candidate], Placement]:
    """Take the first order that covers the range; if none does, the one that reaches furthest."""
    best: tuple[Sequence[Candidate], Placement] = (), {}
    for ordered in orders(sizes, ranked):
        filled = fill(sizes, shard_range, ordered)
        if _covers(filled, shard_range):
            return ordered, filled
        if _layers(filled) > _layers(best[1]):
            best = ordered, filled
    return best


def _cover_uneven(
    sizes: LayerSizes, shard_range: ShardRange, ranked: Sequence[Candidate]
) -> Placement | None:
    """Cover a range of Layers that differ in size, where no order by capacity does."""
    if sizes.even or sum(each.budget_bytes for each in ranked) < sizes.range_bytes(shard_range):
        return None
    ordered = fewest_order(sizes, shard_range, ranked)
    if ordered is None:
        return None
    return _shared_out(sizes, shard_range, ordered)


def _shared_out(
    sizes: LayerSizes, shard_range: ShardRange, ordered: Sequence[Candidate]
) -> Placement:
    """Keep the slowest turn short in an order that covers the range, if there is room to spare."""
    return _balance(sizes, shard_range, ordered) or fill(sizes, shard_range, ordered)


def _balance(
    sizes: LayerSizes, shard_range: ShardRange, ordered: Sequence[Candidate]
) -> Placement | None:
    counts = balanced_counts(sizes, shard_range, ordered)
    if counts is None:
        return None
    if not all(counts):
        # Without those that get nothing somebody else may pay for embeddings or output head.
        kept = [worker for worker, count in zip(ordered, counts, strict=True) if count]
        return _balance(sizes, shard_range, kept)
    placed: Placement = {}
    position = shard_range.start
    for worker, count in zip(ordered, counts, strict=True):
        placed[worker.worker_id] = ShardRange(position, position + count)
        position += count
    return placed


def _covers(placed: Placement, shard_range: ShardRange) -> bool:
    return _layers(placed) == len(shard_range)


def _layers(placed: Placement) -> int:
    return sum(map(len, placed.values()))


def _most_copies(sizes: LayerSizes, ranked: Sequence[Candidate]) -> int:
    layers = _capacity_of_all(sizes, ranked)
    whole_bytes = sizes.range_bytes(sizes.whole)
    lent_bytes = sum(min(worker.budget_bytes, whole_bytes) for worker in ranked)
    return min(layers // sizes.layer_count, lent_bytes // whole_bytes)


def _deal(
    sizes: LayerSizes, ranked: Sequence[Candidate], copies: int
) -> list[list[Candidate]] | None:
    """Deal the Workers out, largest first, always to the emptiest group; None if one falls short.

    Workers bound to Layer 0 go one to a group; more of them have no place in a copy. The emptiest
    group comes first.
    """
    bound = _bound(sizes, ranked)
    groups = [bound[index : index + 1] for index in range(copies)]
    fills = [(_capacity_of_all(sizes, group), index) for index, group in enumerate(groups)]
    heapify(fills)
    for worker in ranked:
        if not worker.starts_at_zero:
            layers, index = heappop(fills)
            groups[index].append(worker)
            heappush(fills, (layers + capacity(sizes, worker), index))
    fills.sort()
    return [groups[index] for _, index in fills] if fills[0][0] >= sizes.layer_count else None


def _group_orders(
    sizes: LayerSizes, groups: list[list[Candidate]] | None
) -> list[Sequence[Candidate]] | None:
    """Give an order for each group in which it covers all Layers; None if one has none."""
    found: list[Sequence[Candidate]] = []
    # The tightest first: if one of them fails, it is that one, and the rest need no look.
    for group in groups or ():
        ordered = _group_order(sizes, group)
        if ordered is None:
            return None
        found.append(ordered)
    return found or None


def _group_order(sizes: LayerSizes, group: Sequence[Candidate]) -> Sequence[Candidate] | None:
    whole_bytes = sizes.range_bytes(sizes.whole)
    alone = next((worker for worker in group if worker.budget_bytes >= whole_bytes), None)
    ordered, filled = _furthest(sizes, sizes.whole, group if alone is None else [alone])
    return ordered if _covers(filled, sizes.whole) else None
