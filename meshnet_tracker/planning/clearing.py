"""Which Workers may be emptied, in part or wholly, to take Layers of another Coverage Gap.

Everything that others are ready to serve as well is loose: whole runs, or one end of a run. What
is chosen is dropped now and the Worker loads in a later pass. Layers that nobody else serves are
dropped only where a Variant is given up, and only if another one is completed by it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.coverage import ROUTABLE, held_ranges
from meshnet_tracker.planning.draft import Draft, candidate_of, count_in, drop
from meshnet_tracker.planning.filling import Counts, GapPlan, Saved, longest_first
from meshnet_tracker.planning.holders import Holder
from meshnet_tracker.planning.orders import Candidate
from meshnet_tracker.planning.placement import fill_range
from meshnet_tracker.planning.snapshot import HeldShard, Holding, VariantKey, WorkerView

MOST_LAYERS = 64
"""So many more Layers than three times the gaps are enough to choose from."""


@dataclass(frozen=True, slots=True)
class Clearable:
    """A Worker that can drop these pieces, and what it could hold then."""

    candidate: Candidate
    pieces: tuple[HeldShard, ...]


def clear(
    plan: GapPlan,
    keys: Collection[VariantKey],
    given_up: Collection[VariantKey] = (),
    roomy: Iterable[Candidate] = (),
) -> None:
    """Fill gaps with Workers that drop loose Layers of these Variants, or all of those given up.

    The `roomy` need drop nothing.
    """
    if not plan.gaps:
        return
    pool = {each.worker_id: Clearable(each, ()) for each in roomy}
    pool |= {each.candidate.worker_id: each for each in _clearable(plan, keys, given_up)}
    for gap in longest_first(plan.gaps):
        candidates = [each.candidate for name, each in pool.items() if name not in plan.used]
        for worker_id, shard_range in fill_range(plan.state.sizes, gap, candidates).items():
            plan.used.add(worker_id)
            _use(plan, pool[worker_id], shard_range, given_up)
            plan.close(shard_range)


def borrow(plan: GapPlan, before: Saved, given_up: Collection[VariantKey] = ()) -> None:
    """Clear Workers of all Variants, but only if that completes this one.

    It starts from where rooms were not shared yet: a Worker may be needed whole.
    """
    after = plan.saved()
    plan.restore(before)
    clear(plan, plan.ready.keys(), given_up, plan.draft.roomy(plan.state))
    _clear_beside(plan, given_up)
    if plan.gaps:
        plan.restore(after)


def _clear_beside(plan: GapPlan, given_up: Collection[VariantKey]) -> None:
    """Let Workers beside a gap drop what is loose of other Variants, to be extended next."""
    sizes, key = plan.state.sizes, plan.state.key
    for holder in plan.idle_holders() if plan.gaps else ():
        worker, run = holder.worker, holder.run
        others = {each: plan.ready[each] for each in plan.ready if each != key}
        pieces = tuple(each for each in pieces_of(worker, others, given_up) if each.variant != key)
        freed = sum(
            plan.draft.states[each.variant].sizes.range_bytes(each.shard_range) for each in pieces
        )
        budget = sizes.range_bytes(run) + plan.draft.rooms[worker.worker_id] + freed
        able = holder.may_load and worker.worker_id in plan.draft.steady
        for gap in plan.gaps if pieces and able else ():
            gained = _beside(sizes, holder, gap, budget)
            if gained is not None:
                plan.used.add(worker.worker_id)
                chosen = Clearable(candidate_of(worker, plan.draft.policy, budget), pieces)
                _use(plan, chosen, gained, given_up)
                plan.close(gained)
                break


def _beside(
    sizes: LayerSizes, holder: Holder, gap: ShardRange, budget_bytes: int
) -> ShardRange | None:
    start = end = gap.start
    if holder.run.end == gap.start:
        end = sizes.end_within(holder.run.start, gap.end, budget_bytes)
    elif holder.run.start == gap.end and not holder.worker.starts_at_zero:
        start, end = sizes.start_within(holder.run.end, gap.start, budget_bytes), gap.end
    return ShardRange(start, end) if start < end else None


def _use(
    plan: GapPlan, chosen: Clearable, shard_range: ShardRange, given_up: Collection[VariantKey]
) -> None:
    """Drop as many of the pieces as the new Layers need room; if none, load them now."""
    worker_id = chosen.candidate.worker_id
    needed = plan.state.sizes.range_bytes(shard_range)
    room = plan.draft.rooms[worker_id]
    own_first = sorted(
        chosen.pieces, key=lambda each: (each.variant != plan.state.key, each.variant)
    )
    for whole in own_first:
        own = whole.variant == plan.state.key
        if room >= needed and not own:
            break
        piece = whole if own else shortened(plan, worker_id, whole, needed - room)
        sizes = plan.draft.states[piece.variant].sizes
        room += sizes.range_bytes(piece.shard_range)
        why = f"to make room for Layers {shard_range} of {plan.state.key}, which nobody serves"
        order = drop(worker_id, piece.variant, piece.shard_range, DirectiveReason.GAP, why)
        plan.orders.append(replace(order, gives_up=piece.variant in given_up))
        count_in(plan.ready[piece.variant], piece.shard_range, -1)
    if room == plan.draft.rooms[worker_id]:
        plan.load_beside(worker_id, shard_range)
    else:
        plan.promised[worker_id] = needed


def shortened(
    plan: GapPlan, worker_id: WorkerId, piece: HeldShard, missing_bytes: int
) -> HeldShard:
    """Leave of a piece what the room is not needed of, on the side where its run goes on."""
    sizes, whole = plan.draft.states[piece.variant].sizes, piece.shard_range
    (run,) = (
        run
        for run in held_ranges(plan.draft.workers[worker_id], piece.variant, ROUTABLE)
        if run.contains(whole)
    )
    counts = range(1, len(whole) + 1)
    if run.start < whole.start or (run == whole and run.end < sizes.layer_count):
        parts = (ShardRange(whole.end - count, whole.end) for count in counts)
    elif plan.draft.workers[worker_id].starts_at_zero:
        return piece
    else:
        parts = (ShardRange(whole.start, whole.start + count) for count in counts)
    part = next((each for each in parts if sizes.range_bytes(each) >= missing_bytes), whole)
    return replace(piece, shard_range=part)


def _clearable(
    plan: GapPlan, keys: Collection[VariantKey], given_up: Collection[VariantKey]
) -> Iterator[Clearable]:
    """Yield Workers that could all be cleared at once, those asked for least first."""
    ready = {key: list(plan.ready[key]) for key in keys}
    missing = sum(map(len, plan.gaps))
    enough_bytes = (3 * missing + MOST_LAYERS) * plan.state.sizes.bytes_per_layer
    for worker in _in_turn(plan.draft, given_up):
        if worker.worker_id in plan.used or not _may_be_cleared(plan, worker):
            continue
        pieces = list(pieces_of(worker, ready, given_up))
        budget = _budget_after(plan, worker, pieces)
        if budget < plan.state.sizes.smallest_layer_bytes:
            continue
        for piece in pieces:
            if piece.variant in ready:
                count_in(ready[piece.variant], piece.shard_range, -1)
        candidate = candidate_of(worker, plan.draft.policy, budget)
        yield Clearable(candidate, tuple(pieces))
        enough_bytes -= budget
        if enough_bytes <= 0:
            return


def _in_turn(draft: Draft, given_up: Collection[VariantKey]) -> Iterable[WorkerView]:
    """Order the Workers that could drop something: least wanted first, then largest first."""
    if draft.loose is None:
        draft.loose = tuple(
            worker_id
            for worker_id, worker in draft.workers.items()
            if worker.held and worker_id in draft.steady and any(_loose_ends(draft, worker))
        )
    named = set(draft.loose)
    for key in given_up:
        named.update(holder.worker_id for holder in draft.states[key].holders)
    known = [worker_id for worker_id in named if worker_id in draft.ranks]

    def rank(worker_id: WorkerId) -> tuple[float, int]:
        held = draft.workers[worker_id].held
        wanted = max(draft.demand.get(shard.variant, 0.0) for shard in held)
        return wanted, draft.ranks[worker_id]

    return [draft.workers[worker_id] for worker_id in sorted(known, key=rank)]


def _loose_ends(draft: Draft, worker: WorkerView) -> Iterator[bool]:
    for shard in worker.held:
        state = draft.states.get(shard.variant)
        if state is not None and shard.shard_range.end <= len(state.ready):
            first, last = shard.shard_range.start, shard.shard_range.end - 1
            yield state.ready[first] > 1 or state.ready[last] > 1


def _may_be_cleared(plan: GapPlan, worker: WorkerView) -> bool:
    draft, worker_id = plan.draft, worker.worker_id
    able = worker_id in draft.steady and worker_id not in draft.busy
    return able and plan.state.key.quantization in worker.quantizations


def pieces_of(
    worker: WorkerView, ready: Counts, given_up: Collection[VariantKey]
) -> Iterator[HeldShard]:
    """Yield what a Worker could drop: what others serve as well, and all of what is given up."""
    for key in sorted({shard.variant for shard in worker.held}):
        runs = held_ranges(worker, key, ROUTABLE)
        for run in runs:
            piece = run if key in given_up else _loose(worker, run, ready.get(key, ()))
            if piece is not None:
                yield HeldShard(key, piece, Holding.READY)


def _loose(worker: WorkerView, run: ShardRange, counts: Sequence[int]) -> ShardRange | None:
    """Give the whole run, or the longer end of it, that others are ready to serve too."""
    if run.end > len(counts):
        return None
    first = next((layer for layer in run.layers if counts[layer] < 2), run.end)
    if first == run.end:
        return run
    last = next(layer for layer in reversed(run.layers) if counts[layer] < 2)
    low = 0 if worker.starts_at_zero else first - run.start
    high = run.end - last - 1
    if low > high:
        return ShardRange(run.start, first)
    return ShardRange(last + 1, run.end) if high else None


def _budget_after(plan: GapPlan, worker: WorkerView, pieces: Sequence[HeldShard]) -> int:
    """Return what it could hold of the Variant; nothing, while a part of that stays there."""
    states = plan.draft.states
    if not pieces or not _leaves_none(plan.state.key, worker, pieces):
        return 0
    freed = sum(states[p.variant].sizes.range_bytes(p.shard_range) for p in pieces)
    return plan.draft.rooms[worker.worker_id] + freed


def _leaves_none(key: VariantKey, worker: WorkerView, pieces: Sequence[HeldShard]) -> bool:
    runs = held_ranges(worker, key, ROUTABLE)
    dropped = [piece.shard_range for piece in pieces if piece.variant == key]
    return runs == dropped
