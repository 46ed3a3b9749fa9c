"""Mending a Route: Hops that are left keep exactly their Layers, only the missing are covered anew.

So the keys and values of a Session stay right where they survive. Each run of missing Layers gets
the Hops that cost least between those that stay, of Workers that are not on the Route yet:

    old Route    [0 ... w1 ... 8) [8 ....... w2 ....... 16) [16 ... w3 ... 24)      w2 is gone
    mended       [0 ... w1 ... 8) [8 . w4 . 12) [12 . w5 . 16) [16 ... w3 ... 24)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.routes import (
    DEFAULT_COSTS,
    NoRouteError,
    Part,
    RouteCosts,
    Wish,
    choose_part,
)
from meshnet_tracker.planning.snapshot import VariantKey


@dataclass(frozen=True, slots=True)
class Detour:
    """Around whom a Route has to lead: sets of Workers, each tried if the one before leaves none.

    With `head` the first Hop is on that Worker.
    """

    around: tuple[frozenset[WorkerId], ...]
    head: WorkerId | None = None


def mend_route(
    table: RouteTable,
    variant_key: VariantKey,
    old: Sequence[RouteHop],
    detour: Detour,
    costs: RouteCosts = DEFAULT_COSTS,
) -> tuple[RouteHop, ...]:
    """Mend the old Route around some Workers, else choose the best one around them.

    Raises the NoRouteError of the last set of Workers to avoid.
    """
    refusal = NoRouteError((), "Nobody was asked for.")
    for avoided in detour.around:
        try:
            return _mended_or_best(table, variant_key, old, Wish(avoided, detour.head, costs))
        except NoRouteError as error:
            refusal = error
    raise refusal


def _mended_or_best(
    table: RouteTable, key: VariantKey, old: Sequence[RouteHop], wish: Wish
) -> tuple[RouteHop, ...]:
    try:
        return _mended(table, key, old, wish)
    except NoRouteError:
        return choose_part(table, key, Part(ShardRange(0, old[-1].end)), wish)


def _mended(
    table: RouteTable, key: VariantKey, old: Sequence[RouteHop], wish: Wish
) -> tuple[RouteHop, ...]:
    hops = _surviving(table, key, old, wish)
    for gap in _missing(hops, old[-1].end):
        taken = wish.exclude.union(WorkerId(hop.worker_id) for hop in hops)
        part = _part(gap, hops, old[-1].end)
        hops += choose_part(table, key, part, replace(wish, exclude=taken))
        hops.sort(key=lambda hop: hop.start)
    return tuple(hops)


def _surviving(
    table: RouteTable, key: VariantKey, old: Iterable[RouteHop], wish: Wish
) -> list[RouteHop]:
    """Choose the Hops that are ready where they were, as their Workers can be reached now."""
    surviving = []
    for hop in old:
        worker_id = WorkerId(hop.worker_id)
        shard = table.of_variant(key).get(worker_id)
        if shard is None or worker_id in wish.exclude or not shard.run.contains(hop.shard_range):
            continue
        if hop.start or wish.head in (None, worker_id):
            worker = shard.worker
            surviving.append(
                msgspec.structs.replace(hop, url=worker.url, fingerprint=worker.fingerprint)
            )
    return surviving


def _missing(hops: Iterable[RouteHop], layer_count: int) -> tuple[ShardRange, ...]:
    missing: tuple[ShardRange, ...] = (ShardRange(0, layer_count),)
    for hop in hops:
        missing = tuple(left for run in missing for left in run.minus(hop.shard_range))
    return missing


def _part(gap: ShardRange, hops: Sequence[RouteHop], layer_count: int) -> Part:
    """Say who is before and after a gap; the last one of a Route sends to the first one."""
    ends = {hop.end % layer_count: WorkerId(hop.worker_id) for hop in hops}
    starts = {hop.start: WorkerId(hop.worker_id) for hop in hops}
    return Part(
        layers=gap,
        before=ends.get(gap.start),
        after=starts.get(gap.end % layer_count),
        ends_route=gap.end == layer_count,
    )
