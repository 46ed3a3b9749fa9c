"""Filling gaps soonest, where the speeds of lines are known.

Free Workers take part, Workers with room beside other Variants, and the one with the fastest line
at each end of a gap. Who is loading something else first is waited for, and counted from then on.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.filling import GapPlan, longest_first
from meshnet_tracker.planning.holders import Holder
from meshnet_tracker.planning.lines import Line, shares
from meshnet_tracker.planning.orders import Candidate
from meshnet_tracker.planning.snapshot import Holding

UNMEASURED_BYTES_PER_SEC = 10e6
"""What a line counts as beside measured ones."""
ENOUGH_FREE = 16
"""With so many free Workers nobody else is looked at."""


@dataclass(frozen=True, slots=True)
class _Edge:
    """A Worker whose run ends where the gap begins (`low`), or begins where it ends."""

    holder: Holder
    budget_bytes: int
    layers: int


def fill_quickly(plan: GapPlan) -> None:
    """Give each gap to those who have it loaded soonest; leave what that does not fill."""
    for gap in longest_first(plan.gaps):
        others = _others(plan, gap)
        edges = [edge for low in (True, False) if (edge := _edge(plan, gap, low=low)) is not None]
        workers = [each.worker_id for each in others] + [e.holder.worker_id for e in edges]
        if not any(_measured(plan, worker_id) for worker_id in workers):
            continue
        size = plan.state.sizes.bytes_per_layer
        lines = [_line(plan, each.worker_id, each.budget_bytes // size) for each in others]
        lines += [_line(plan, each.holder.worker_id, each.layers) for each in edges]
        taken = shares(lines, len(gap))
        if taken:
            _place(plan, gap, taken, edges, others)


def _others(plan: GapPlan, gap: ShardRange) -> list[Candidate]:
    """Give Workers that hold nothing of the Variant."""
    draft, state = plan.draft, plan.state
    able = draft.largest_of(draft.free, state.key, len(gap) + ENOUGH_FREE)
    if len(able) < ENOUGH_FREE:
        able = able + draft.roomy(state)
    bound = state.sizes.layer_count if gap.start else 0
    return [
        each
        for each in able
        if each.worker_id not in plan.used and not (each.starts_at_zero and bound)
    ]


def _edge(plan: GapPlan, gap: ShardRange, *, low: bool) -> _Edge | None:
    """Find the fastest line of those who can go on into the gap from this side."""
    found: _Edge | None = None
    for holder in plan.idle_holders():
        beside = holder.run.end == gap.start if low else holder.run.start == gap.end
        if not beside or not holder.may_load or (not low and holder.worker.starts_at_zero):
            continue
        edge = _with_room(plan, gap, holder, low=low)
        if edge.layers and (found is None or _faster(edge, found)):
            found = edge
    return found


def _with_room(plan: GapPlan, gap: ShardRange, holder: Holder, *, low: bool) -> _Edge:
    sizes, run = plan.state.sizes, holder.run
    room = sizes.range_bytes(run) + plan.draft.rooms[holder.worker_id]
    budget = min(holder.budget_bytes, room)
    if low:
        layers = sizes.end_within(run.start, gap.end, budget) - run.end
    else:
        layers = run.start - sizes.start_within(run.end, gap.start, budget)
    return _Edge(holder, budget, max(0, layers))


def _faster(edge: _Edge, than: _Edge) -> bool:
    mine, other = edge.holder.worker, than.holder.worker
    return (mine.download_bytes_per_sec, mine.worker_id) > (
        other.download_bytes_per_sec,
        other.worker_id,
    )


def _measured(plan: GapPlan, worker_id: WorkerId) -> bool:
    return plan.draft.workers[worker_id].download_bytes_per_sec > 0


def _line(plan: GapPlan, worker_id: WorkerId, layers: int) -> Line:
    speed = plan.draft.workers[worker_id].download_bytes_per_sec or UNMEASURED_BYTES_PER_SEC
    delay = sum(bytes_under_way(plan, worker_id)) / speed
    return Line(worker_id, layers, speed / plan.state.sizes.bytes_per_layer, delay)


def bytes_under_way(plan: GapPlan, worker_id: WorkerId) -> Iterator[int]:
    """Yield what it is told to load before, as far as it is known."""
    states = plan.draft.states
    for shard in plan.draft.workers[worker_id].held:
        if shard.holding in (Holding.ORDERED, Holding.LOADING) and shard.variant in states:
            yield states[shard.variant].sizes.range_bytes(shard.shard_range)
    yield plan.draft.ordered_bytes.get(worker_id, 0)


def _place(
    plan: GapPlan,
    gap: ShardRange,
    taken: dict[WorkerId, int],
    edges: list[_Edge],
    others: list[Candidate],
) -> None:
    """Put the Workers at the ends of the gap where they belong, and the others between them."""
    start, end = gap.start, gap.end
    for edge in edges:
        count = taken.pop(edge.holder.worker_id, 0)
        if count and edge.holder.run.end == gap.start:
            _take(plan, edge.holder.worker_id, ShardRange(start, start + count))
            start += count
        elif count:
            _take(plan, edge.holder.worker_id, ShardRange(end - count, end))
            end -= count
    budgets = {each.worker_id: each for each in others}
    bound_first = sorted(
        taken.items(), key=lambda each: (not budgets[each[0]].starts_at_zero, -each[1], each[0])
    )
    for worker_id, count in bound_first:
        limit = min(start + count, end)
        fits = plan.state.sizes.end_within(start, limit, budgets[worker_id].budget_bytes)
        if fits > start:
            _take(plan, worker_id, ShardRange(start, fits))
            start = fits


def _take(plan: GapPlan, worker_id: WorkerId, shard_range: ShardRange) -> None:
    plan.used.add(worker_id)
    plan.close(shard_range)
    plan.quick = True
    plan.load_beside(worker_id, shard_range)
