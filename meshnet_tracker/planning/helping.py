"""Covering a Variant soonest: who is ordered what, of those who could help (`helper_pool.py`).

First nobody gives anything up. Then Layers that others serve as well are dropped, and Layers of
the Variant itself, which serves nobody now; at last what those have that are given up for it. Each
of these only if the Variant is covered much sooner by it. What is on its way already counts from
when it is there: others load the same as well, if that is much sooner.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from math import inf

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.clearing import shortened
from meshnet_tracker.planning.draft import count_in, drop
from meshnet_tracker.planning.filling import GapPlan
from meshnet_tracker.planning.helper_pool import HelperPool
from meshnet_tracker.planning.snapshot import HeldShard, Holding, VariantKey
from meshnet_tracker.planning.soonest import MUCH, MUCH_SECONDS, Way, soonest

MOST_WORKERS = 128
MOST_HELPERS = 48
"""With more of them the simpler rules are quick enough, and this one is too slow."""


def cover_soonest(plan: GapPlan, given_up: Collection[VariantKey] = ()) -> None:
    """Fill all gaps if that can be done where lines are measured; else change nothing.

    Where all is on its way, others are told to load some of it only if that is much sooner.
    """
    workers = plan.draft.workers.values()
    if len(workers) > MOST_WORKERS or not any(w.download_bytes_per_sec > 0 for w in workers):
        return
    best: tuple[Way, HelperPool] | None = None
    limit = _much_sooner(_seconds_left(plan)) if plan.complete else inf
    for drops, lost in _levels(plan, given_up):
        pool = HelperPool.of(plan, lost, drops=drops)
        if len(pool.helpers) > MOST_HELPERS:
            return
        way = _fitting_way(plan, pool)
        if way is not None and way.seconds < limit:
            best = way, pool
            limit = _much_sooner(way.seconds)
    if best is not None:
        _follow(plan, *best)


def _much_sooner(seconds: float) -> float:
    return seconds * MUCH - MUCH_SECONDS


def _seconds_left(plan: GapPlan) -> float:
    """Tell when all is there that is on its way."""
    pool = HelperPool.of(plan, frozenset(), drops=False)
    as_it_is = (replace(each, layers=0) for each in pool.helpers)
    way = soonest(as_it_is, plan.state.sizes.layer_count)
    return inf if way is None else way.seconds


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


def _fitting_way(plan: GapPlan, pool: HelperPool) -> Way | None:
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


def _fits(plan: GapPlan, pool: HelperPool, way: Way) -> bool:
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


def _follow(plan: GapPlan, way: Way, pool: HelperPool) -> None:
    for worker_id, runs in sorted(way.loads.items()):
        plan.used.add(worker_id)
        plan.quick = True
        for run in runs:
            plan.close(run)
        calls_off = pool.called_off_bytes(worker_id) > 0
        if worker_id in plan.draft.steady or calls_off or not _drops(plan, way, worker_id):
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
    pool: HelperPool,
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
        for left in own.minus(part) if part.overlap(own) else (own,):
            _drop(plan, pool, worker_id, HeldShard(plan.state.key, left, Holding.READY), part)
            room += sizes.range_bytes(left)
            dropped = True
    needed = sum(map(sizes.range_bytes, runs))
    for piece in _dropped(plan, pool, worker_id, needed - room):
        _drop(plan, pool, worker_id, piece, next(iter(runs)))
        dropped = True
    if dropped:
        plan.promised[worker_id] = plan.promised.get(worker_id, 0) + needed
        return
    first, *later = runs
    plan.load_beside(worker_id, first)
    for run in later:
        plan.promised[worker_id] = plan.promised.get(worker_id, 0) + sizes.range_bytes(run)


def _dropped(
    plan: GapPlan, pool: HelperPool, worker_id: WorkerId, missing_bytes: int
) -> Iterator[HeldShard]:
    """Yield what it gives up: all that is called off, and of the rest what room is missing for."""
    for whole in pool.pieces.get(worker_id, ()):
        if whole.holding is not Holding.READY:
            yield whole
            missing_bytes -= pool.size_of(whole)
        elif missing_bytes > 0 and worker_id in plan.draft.steady:
            shorter = shortened(plan, worker_id, whole, missing_bytes)
            yield shorter
            missing_bytes -= pool.size_of(shorter)


def _drop(
    plan: GapPlan, pool: HelperPool, worker_id: WorkerId, piece: HeldShard, wanted: ShardRange
) -> None:
    why = f"to make room for Layers {wanted} of {plan.state.key}, which nobody serves"
    order = drop(worker_id, piece.variant, piece.shard_range, DirectiveReason.GAP, why)
    plan.orders.append(replace(order, gives_up=piece.variant in pool.given_up))
    if piece.holding is Holding.READY:
        count_in(plan.ready[piece.variant], piece.shard_range, -1)
