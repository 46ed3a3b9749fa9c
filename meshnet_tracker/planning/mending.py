"""Mending a Route: Hops that are left keep exactly their Layers, only the missing are covered anew.

So the keys and values of a Session stay right where they survive. Each run of missing Layers is
routed as if it were a model of its own, among Workers that are not on the Route yet:

    old Route    [0 ... w1 ... 8) [8 ....... w2 ....... 16) [16 ... w3 ... 24)      w2 is gone
    mended       [0 ... w1 ... 8) [8 . w4 . 12) [12 . w5 . 16) [16 ... w3 ... 24)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.coverage import ROUTABLE, held_ranges
from meshnet_tracker.planning.routes import DEFAULT_COSTS, NoRouteError, RouteCosts, choose_route
from meshnet_tracker.planning.snapshot import HeldShard, Holding, VariantKey, WorkerView


@dataclass(frozen=True, slots=True)
class Detour:
    """Around whom a Route has to lead: sets of Workers, each tried if the one before leaves none.

    With `head` the first Hop is on that Worker.
    """

    around: tuple[frozenset[WorkerId], ...]
    head: WorkerId | None = None


def mend_route(
    workers: Iterable[WorkerView],
    variant_key: VariantKey,
    old: Sequence[RouteHop],
    detour: Detour,
    costs: RouteCosts = DEFAULT_COSTS,
) -> tuple[RouteHop, ...]:
    """Mend the old Route around some Workers, else choose the best one around them.

    Raises the NoRouteError of the last set of Workers to avoid.
    """
    pool = tuple(workers)
    refusal = NoRouteError((), "Nobody was asked for.")
    for avoided in detour.around:
        able = [worker for worker in pool if worker.worker_id not in avoided]
        try:
            return _mended_or_best(able, variant_key, old, detour.head, costs)
        except NoRouteError as error:
            refusal = error
    raise refusal


def _mended_or_best(
    workers: Sequence[WorkerView],
    key: VariantKey,
    old: Sequence[RouteHop],
    head: WorkerId | None,
    costs: RouteCosts,
) -> tuple[RouteHop, ...]:
    try:
        return _mended(workers, key, old, head, costs)
    except NoRouteError:
        return choose_route(workers, key, old[-1].end, head=head, costs=costs)


def _mended(
    workers: Sequence[WorkerView],
    key: VariantKey,
    old: Sequence[RouteHop],
    head: WorkerId | None,
    costs: RouteCosts,
) -> tuple[RouteHop, ...]:
    hops = _surviving(workers, key, old, head)
    for gap in _missing(hops, old[-1].end):
        on_route = {hop.worker_id for hop in hops}
        free = (worker for worker in workers if worker.worker_id not in on_route)
        begins = head if gap.start == 0 else None
        part = choose_route(_within(free, key, gap), key, len(gap), head=begins, costs=costs)
        hops += (_shifted(hop, gap.start) for hop in part)
    return tuple(sorted(hops, key=lambda hop: hop.start))


def _surviving(
    workers: Iterable[WorkerView], key: VariantKey, old: Iterable[RouteHop], head: WorkerId | None
) -> list[RouteHop]:
    """Choose the Hops that are ready where they were, as their Workers can be reached now."""
    by_id: dict[str, WorkerView] = {worker.worker_id: worker for worker in workers}
    return [
        msgspec.structs.replace(hop, url=worker.url, fingerprint=worker.fingerprint)
        for hop in old
        if (worker := by_id.get(hop.worker_id)) is not None
        and any(run.contains(hop.shard_range) for run in held_ranges(worker, key, ROUTABLE))
        and (hop.start or head in (None, worker.worker_id))
    ]


def _missing(hops: Iterable[RouteHop], layer_count: int) -> tuple[ShardRange, ...]:
    missing: tuple[ShardRange, ...] = (ShardRange(0, layer_count),)
    for hop in hops:
        missing = tuple(left for run in missing for left in run.minus(hop.shard_range))
    return missing


def _within(
    workers: Iterable[WorkerView], key: VariantKey, gap: ShardRange
) -> Iterable[WorkerView]:
    """Show Workers as if the gap were all of a model, numbered from 0."""
    for worker in workers:
        runs = (run.overlap(gap) for run in held_ranges(worker, key, ROUTABLE))
        held = tuple(
            HeldShard(key, ShardRange(run.start - gap.start, run.end - gap.start), Holding.READY)
            for run in runs
            if run is not None
        )
        yield replace(worker, held=held)


def _shifted(hop: RouteHop, by: int) -> RouteHop:
    return msgspec.structs.replace(hop, start=hop.start + by, end=hop.end + by)
