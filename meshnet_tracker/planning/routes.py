"""The router: the Route through what is ready now that lets one token pass quickest.

The cost of a Route is the seconds that one token takes on it: for each Hop its Layers at the share
of the Worker's speed that the Session would get, and an overhead; between Hops half the round
trip; and the way of the token from the last Worker to the first. A Hop may enter a Shard in the
middle and leave it early.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from meshnet_common.errors import MeshnetError
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.coverage import count_layers, gaps_of
from meshnet_tracker.planning.route_field import Entrant, Field
from meshnet_tracker.planning.route_index import VariantIndex
from meshnet_tracker.planning.route_links import (
    Matrix,
    latencies,
    round_trip_seconds,
    sending_seconds,
    take_overs,
    ways_between,
)
from meshnet_tracker.planning.route_picks import FEW_SHARDS, Taste, picks
from meshnet_tracker.planning.route_rows import Shard, bits_of
from meshnet_tracker.planning.route_search import quickest_turns
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.snapshot import VariantKey

HOP_SECONDS = 0.002
"""What one more Hop costs each token beside the way to it."""
GOOD_ENOUGH = 0.25
"""Among many Workers a Route may be dearer than the best one by so much of the way back."""
MOST_FIRST_ONES = 6


class NoRouteError(MeshnetError):
    """No chain of Workers covers every Layer of this Variant."""

    def __init__(self, missing: tuple[ShardRange, ...], detail: str) -> None:
        self.missing = missing
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class RouteCosts:
    """What a Hop costs beside its Layers, and what decides between Routes that cost the same.

    Give every Session a salt of its own, and equal Workers get about equal shares.
    """

    hop_seconds: float = HOP_SECONDS
    tie_salt: str = ""
    affinity: str = ""
    """Requests with the same one get the same Workers where that costs little."""
    kv_bytes_per_layer: int = 0
    """What the Session is expected to need on each Layer for its keys and values."""
    hop_bytes: int = 0
    """What goes from Hop to Hop for one token."""


DEFAULT_COSTS = RouteCosts()


@dataclass(frozen=True, slots=True)
class Part:
    """Layers that are to be routed, between Workers of the Route that run the others already."""

    layers: ShardRange
    before: WorkerId | None = None
    """Who runs the Layer before; in a ring, so before the first Layer the Tail Worker."""
    after: WorkerId | None = None
    """Who runs the Layer after, or gets the token."""
    ends_route: bool = True


@dataclass(frozen=True, slots=True)
class Wish:
    """Whom a Route is to lead around, who is to begin it, and what it costs."""

    exclude: frozenset[WorkerId] = frozenset()
    head: WorkerId | None = None
    costs: RouteCosts = DEFAULT_COSTS

    def taste(self) -> Taste:
        costs = self.costs
        return Taste(
            exclude=self.exclude,
            head=self.head,
            tie_salt=costs.tie_salt,
            affinity=costs.affinity,
            kv_bytes_per_layer=costs.kv_bytes_per_layer,
        )


def choose_route(
    table: RouteTable,
    variant_key: VariantKey,
    layer_count: int,
    *,
    exclude: frozenset[WorkerId] = frozenset(),
    head: WorkerId | None = None,
    costs: RouteCosts = DEFAULT_COSTS,
) -> tuple[RouteHop, ...]:
    """Choose the Hops that together run every Layer once, in order, each Worker at most once.

    Only ready Shards of Workers not in `exclude` take part, sessions share a Worker's speed, and
    with `head` the first Hop is on that Worker. Raises NoRouteError, naming the missing Layers.
    """
    part = Part(ShardRange(0, layer_count))
    return choose_part(table, variant_key, part, Wish(exclude, head, costs))


def choose_part(
    table: RouteTable, variant_key: VariantKey, part: Part, wish: Wish
) -> tuple[RouteHop, ...]:
    """Choose Hops for some Layers of a Route, as `choose_route` does for all of them."""
    index = table.of_variant(variant_key)
    taste = wish.taste()
    shards = picks(index, part.layers, taste)
    _check(shards, part.layers, wish.head)
    field = _field(shards, index, part, wish)
    return tuple(
        RouteHop(
            worker_id=shards[turn.entrant].worker_id,
            url=shards[turn.entrant].worker.url,
            start=turn.start,
            end=turn.end,
            fingerprint=shards[turn.entrant].worker.fingerprint,
        )
        for turn in quickest_turns(field)
    )


def _check(shards: Sequence[Shard], layers: ShardRange, head: WorkerId | None) -> None:
    left = bits_of(layers)
    for shard in shards:
        left &= ~bits_of(shard.run)
        if not left:
            break
    if left:
        counts = count_layers((shard.run for shard in shards), layers.end)
        gaps = (gap.overlap(layers) for gap in gaps_of(counts))
        missing = tuple(gap for gap in gaps if gap is not None)
        raise NoRouteError(missing, f"Missing Layers: {', '.join(map(str, missing))}.")
    may_begin = (shard.run.start == 0 and head in (None, shard.worker_id) for shard in shards)
    if layers.start == 0 and not any(may_begin):
        raise NoRouteError((ShardRange(0, 1),), f"Worker {head} is not ready to serve Layer 0.")


def _field(shards: Sequence[Shard], index: VariantIndex, part: Part, wish: Wish) -> Field:
    ways = ways_between(shards, index)
    return Field(
        layers=part.layers,
        entrants=tuple(_entrants(shards, index, part, wish)),
        take_over_seconds=take_overs(shards, ways, wish.costs.hop_seconds, wish.costs.hop_bytes),
        end_seconds=_ends(shards, latencies(ways), index, part, wish.costs),
        first_ones=() if part.after is not None else _first_ones(shards, part.layers, wish.head),
        good_enough=0.0 if len(shards) <= FEW_SHARDS else GOOD_ENOUGH,
    )


def _entrants(
    shards: Iterable[Shard], index: VariantIndex, part: Part, wish: Wish
) -> Iterator[Entrant]:
    layers, taste, costs = part.layers, wish.taste(), wish.costs
    start, end, head = layers.start, layers.end, wish.head
    before = index.get(part.before) if part.before else None
    for shard in shards:
        run = shard.run
        if run.start < start or run.end > end:
            run = ShardRange(max(run.start, start), min(run.end, end))
        begin_seconds = costs.hop_seconds
        if before is not None:
            begin_seconds += round_trip_seconds(before, shard, index) / 2
            if start:
                begin_seconds += sending_seconds(before, shard, costs.hop_bytes)
        seconds = taste.layer_seconds(shard, run.end - run.start)
        yield Entrant(run, seconds, begin_seconds, not head or start > 0 or head == shard.worker_id)


def _ends(
    shards: Sequence[Shard], ways: Matrix, index: VariantIndex, part: Part, costs: RouteCosts
) -> Matrix:
    after = index.get(part.after) if part.after else None
    if after is None:
        return ways
    sent_bytes = 0 if part.ends_route else costs.hop_bytes
    return [
        [round_trip_seconds(shard, after, index) / 2 + sending_seconds(shard, after, sent_bytes)]
        * len(shards)
        for shard in shards
    ]


def _first_ones(
    shards: Sequence[Shard], layers: ShardRange, head: WorkerId | None
) -> tuple[frozenset[int], ...]:
    able = [
        number
        for number, shard in enumerate(shards)
        if shard.run.start <= layers.start and head in (None, shard.worker_id)
    ]
    if len(able) <= MOST_FIRST_ONES:
        return tuple(frozenset({number}) for number in able)
    together: dict[str, set[int]] = defaultdict(set)
    for number in able:
        together[shards[number].locality].add(number)
    return tuple(frozenset(numbers) for _, numbers in sorted(together.items()))[:MOST_FIRST_ONES]
