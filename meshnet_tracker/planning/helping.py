"""Which Workers could help to cover a Variant, and what they are ordered then (`soonest.py`).

First nobody gives anything up. Then Layers that others serve as well are dropped, and Layers of
the Variant itself, which serves nobody now; at last what those have that are given up for it. Each
of these only if the Variant is covered much sooner by it.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.clearing import pieces_of, shortened
from meshnet_tracker.planning.draft import count_in, drop
from meshnet_tracker.planning.filling import GapPlan
from meshnet_tracker.planning.quickly import UNMEASURED_BYTES_PER_SEC, bytes_under_way
from meshnet_tracker.planning.snapshot import HeldShard, Holding, VariantKey, WorkerView
from meshnet_tracker.planning.soonest import MUCH, MUCH_SECONDS, Helper, Way, soonest

MOST_WORKERS = 128
MOST_HELPERS = 48
"""With more of them the simpler rules are quick enough, and this one is too slow."""
DROP_SECONDS = 6.0
"""About so long Sessions take to end before Layers are dropped."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """Helpers, and what each of them would drop for it."""

    helpers: list[Helper]
    pieces: dict[WorkerId, tuple[HeldShard, ...]]
    budgets: dict[WorkerId, int]
    given_up: frozenset[VariantKey]


def cover_soonest(plan: GapPlan, given_up: Collection[VariantKey] = ()) -> None:
    """Fill all gaps if that can be done where lines are measured; else change nothing."""
    workers = plan.draft.workers.values()
    if len(workers) > MOST_WORKERS or not any(w.download_bytes_per_sec > 0 for w in workers):
        return
    best: tuple[Way, _Pool] | None = None
    for drops, lost in _levels(plan, given_up):
        pool = _pool(plan, lost, drops=drops)
        if len(pool.helpers) > MOST_HELPERS:
            return
        way = _fitting_way(plan, pool)
        if way is None:
            continue
        if best is None or way.seconds < best[0].seconds * MUCH - MUCH_SECONDS:
            best = way, pool
    if best is not None:
        _follow(plan, *best)


def _levels(
    plan: GapPlan, given_up: Collection[VariantKey]
) -> Iterator[tuple[bool, frozenset[VariantKey]]]:
    """Yield whether anything is dropped, and which Variants may lose Layers that none else has."""
    own = plan.state.key
    yield False, frozenset()
    if plan.state.started:
        yield True, frozenset() if all(plan.state.ready) else frozenset({own})
    if given_up:
        yield True, frozenset({own, *given_up})


def _fitting_way(plan: GapPlan, pool: _Pool) -> Way | None:
    """Find a way on which embeddings and output head fit as well, if need be with less of each."""
    sizes = plan.state.sizes
    ends = -(-(sizes.first_bytes + sizes.last_bytes) // sizes.bytes_per_layer)
    for spare in (0, ends) if ends else (0,):
        helpers = [
            replace(
                each,
                layers=max(0, each.layers - spare),
                released_layers=max(0, each.released_layers - spare),
            )
            for each in pool.helpers
        ]
        way = soonest(helpers, sizes.layer_count)
        if way is None or _fits(plan, pool, way):
            return way
    return None


def _fits(plan: GapPlan, pool: _Pool, way: Way) -> bool:
    sizes = plan.state.sizes
    runs = {each.worker_id: each.run for each in plan.state.holders}
    for worker_id, loads in way.loads.items():
        own = None if worker_id in way.released else runs.get(worker_id)
        whole = loads[0] if own is None else own
        for each in loads:
            whole = whole.union(each)
        if sizes.range_bytes(whole) > pool.budgets[worker_id]:
            return False
    return True


def _pool(plan: GapPlan, lost: frozenset[VariantKey], *, drops: bool) -> _Pool:
    ready = {key: list(counts) for key, counts in plan.ready.items()}
    pool = _Pool([], {}, {}, lost)
    for worker in plan.draft.workers.values():
        for helper in _helpers(plan, worker, ready, pool, drops=drops):
            pool.helpers.append(helper)
    return pool


def _helpers(
    plan: GapPlan,
    worker: WorkerView,
    ready: dict[VariantKey, list[int]],
    pool: _Pool,
    *,
    drops: bool,
) -> Iterator[Helper]:
    draft, state, worker_id = plan.draft, plan.state, worker.worker_id
    own = [holder for holder in state.holders if holder.worker_id == worker_id]
    if not _is_able(plan, worker) or len(own) > 1 or any(each.barred for each in own):
        for holder in own:
            yield Helper(worker_id, 0, 1.0, run=holder.run)
        return
    sizes = state.sizes
    line = worker.download_bytes_per_sec or UNMEASURED_BYTES_PER_SEC
    room = max(0, draft.rooms[worker_id])
    may_drop = drops and worker_id not in draft.busy
    freed = _freed(plan, worker, ready, pool) if may_drop else 0
    under_way = sum(bytes_under_way(plan, worker_id)) / line
    draining = any(shard.holding is Holding.DRAINING for shard in worker.held)
    delay = max(under_way, DROP_SECONDS if draining or freed else 0.0)
    rate = line / sizes.bytes_per_layer
    if not own:
        layers = (room + freed) // sizes.bytes_per_layer
        pool.budgets[worker_id] = room + freed
        if layers:
            yield Helper(
                worker_id, min(layers, sizes.layer_count), rate, delay, None, worker.starts_at_zero
            )
        return
    (holder,) = own
    run_bytes = sizes.range_bytes(holder.run)
    budget = min(holder.budget_bytes + freed, run_bytes + room + freed)
    pool.budgets[worker_id] = budget
    layers = max(0, budget - run_bytes) // sizes.bytes_per_layer
    may_release = may_drop and state.key in pool.given_up and holder.settled
    yield Helper(
        worker_id,
        min(layers, sizes.layer_count),
        rate,
        delay,
        holder.run,
        worker.starts_at_zero,
        min(budget // sizes.bytes_per_layer, sizes.layer_count) if may_release else 0,
        max(delay, DROP_SECONDS),
    )


def _is_able(plan: GapPlan, worker: WorkerView) -> bool:
    """Whether it may be told to load something of the Variant, now or soon."""
    draft, key, worker_id = plan.draft, plan.state.key, worker.worker_id
    kept = any(shard.holding is not Holding.DRAINING for shard in worker.held)
    open_to_all = worker_id in draft.free | draft.emptying or worker_id in draft.newly_held
    ordered = any(d.worker_id == worker_id and d.variant == key for d in draft.directives)
    barred = worker_id in draft.bound or worker_id in draft.cooling or worker_id in plan.used
    return (
        (kept or open_to_all)
        and not ordered
        and not barred
        and key.quantization in worker.quantizations
    )


def _freed(
    plan: GapPlan, worker: WorkerView, ready: dict[VariantKey, list[int]], pool: _Pool
) -> int:
    """Note what it could drop of other Variants; returns how many bytes that are."""
    key, freed = plan.state.key, 0
    others = {each: counts for each, counts in ready.items() if each != key}
    pieces = tuple(
        each
        for each in pieces_of(worker, others, pool.given_up)
        if each.variant != key and each.variant in others
    )
    for piece in pieces:
        freed += plan.draft.states[piece.variant].sizes.range_bytes(piece.shard_range)
        if piece.variant not in pool.given_up:
            count_in(ready[piece.variant], piece.shard_range, -1)
    pool.pieces[worker.worker_id] = pieces
    return freed


def _follow(plan: GapPlan, way: Way, pool: _Pool) -> None:
    for worker_id, runs in sorted(way.loads.items()):
        plan.used.add(worker_id)
        plan.quick = True
        for run in runs:
            plan.close(run)
        if worker_id in plan.draft.steady or not _drops(plan, way, worker_id):
            _order(plan, pool, worker_id, runs, released=worker_id in way.released)
        else:
            plan.promised[worker_id] = sum(map(plan.state.sizes.range_bytes, runs))
    for worker_id in sorted(way.released - way.loads.keys()):
        # Nothing is needed of it after all: it stays as it is.
        plan.used.discard(worker_id)


def _drops(plan: GapPlan, way: Way, worker_id: WorkerId) -> bool:
    """Whether it has to drop something first."""
    needed = sum(map(plan.state.sizes.range_bytes, way.loads[worker_id]))
    return worker_id in way.released or needed > plan.draft.rooms[worker_id]


def _order(
    plan: GapPlan,
    pool: _Pool,
    worker_id: WorkerId,
    runs: Collection[ShardRange],
    *,
    released: bool,
) -> None:
    sizes = plan.state.sizes
    room, dropped = plan.draft.rooms[worker_id], False
    (part,) = runs if released else (None,)
    if part is not None:
        (own,) = (h.run for h in plan.state.holders if h.worker_id == worker_id)
        runs = part.minus(own) if part.overlap(own) else (part,)
        if not runs:
            return  # It has what is wanted of it, and may as well keep the rest.
        for piece in own.minus(part) if part.overlap(own) else (own,):
            _drop(plan, pool, worker_id, HeldShard(plan.state.key, piece, Holding.READY), part)
            room += sizes.range_bytes(piece)
            dropped = True
    needed = sum(map(sizes.range_bytes, runs))
    for whole in pool.pieces.get(worker_id, ()):
        if room >= needed:
            break
        shorter = shortened(plan, worker_id, whole, needed - room)
        _drop(plan, pool, worker_id, shorter, next(iter(runs)))
        room += plan.draft.states[shorter.variant].sizes.range_bytes(shorter.shard_range)
        dropped = True
    if dropped:
        plan.promised[worker_id] = plan.promised.get(worker_id, 0) + needed
        return
    first, *later = runs
    plan.load_beside(worker_id, first)
    for run in later:
        plan.promised[worker_id] = plan.promised.get(worker_id, 0) + sizes.range_bytes(run)


def _drop(
    plan: GapPlan, pool: _Pool, worker_id: WorkerId, piece: HeldShard, wanted: ShardRange
) -> None:
    why = f"to make room for Layers {wanted} of {plan.state.key}, which nobody serves"
    order = drop(worker_id, piece.variant, piece.shard_range, DirectiveReason.GAP, why)
    plan.orders.append(replace(order, gives_up=piece.variant in pool.given_up))
    count_in(plan.ready[piece.variant], piece.shard_range, -1)
