"""The router: the quickest Route through what is ready now.

A Hop may enter a Shard in the middle and leave it early. The cost of a Route is the seconds that
one token takes on it: for each Hop its Layers at the Worker's share of speed, and an overhead.
Changing Workers pays only where a Shard begins or ends, so only those Layers are looked at, and
of Workers with the same range only the quickest: the search grows with the number of distinct
ranges, not of Workers.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self
from zlib import crc32

from meshnet_common.errors import MeshnetError
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.coverage import ROUTABLE, count_layers, gaps_of, held_ranges
from meshnet_tracker.planning.snapshot import VariantKey, WorkerView

HOP_SECONDS = 0.002
"""What one more Hop costs each token, until links are measured."""


class NoRouteError(MeshnetError):
    """No chain of Workers covers every Layer of this Variant."""

    def __init__(self, missing: tuple[ShardRange, ...], detail: str) -> None:
        self.missing = missing
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class RouteCosts:
    """What a Hop costs beside its Layers; `tie_salt` decides between equals.

    Give every Session a salt of its own, and equal Workers get about equal shares.
    """

    hop_seconds: float = HOP_SECONDS
    tie_salt: str = ""


DEFAULT_COSTS = RouteCosts()


@dataclass(frozen=True, slots=True)
class _Shard:
    """A run that is ready; `may_begin` says whether the Route may start on it."""

    worker: WorkerView
    run: ShardRange
    layer_seconds: float
    may_begin: bool

    @property
    def entry(self) -> int:
        """The first Layer at which it may take over; the Head Worker runs one at least."""
        return max(self.run.start, 0 if self.may_begin else 1)


@dataclass(frozen=True, slots=True)
class _Turn:
    """A Shard runs the Layers [start, end); `seconds` and `hops` are the Route's up to there."""

    shard: _Shard
    start: int
    end: int
    seconds: float
    hops: int

    def until(self, end: int) -> Self:
        seconds = self.seconds + (end - self.end) * self.shard.layer_seconds
        return replace(self, end=end, seconds=seconds)

    def cost(self) -> tuple[float, int]:
        return self.seconds, self.hops


@dataclass(frozen=True, slots=True)
class _Takeover:
    """The cheapest way to have run all Layers below `layer`, and what a new Hop costs there."""

    layer: int
    before: _Turn | None
    hop_seconds: float

    def by(self, shard: _Shard) -> _Turn:
        seconds = self.before.seconds if self.before else 0.0
        hops = self.before.hops if self.before else 0
        return _Turn(shard, self.layer, self.layer, seconds + self.hop_seconds, hops + 1)

    def or_stay(self, turn: _Turn) -> _Turn:
        return min(turn, self.by(turn.shard), key=_Turn.cost)


def choose_route(
    workers: Iterable[WorkerView],
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
    able = (worker for worker in workers if worker.worker_id not in exclude)
    shards = _quickest(able, variant_key, head, costs)
    _check(shards, layer_count, head)
    turns = _joined(_quickest_turns(shards, layer_count, costs.hop_seconds))
    return tuple(
        RouteHop(
            worker_id=turn.shard.worker.worker_id,
            url=turn.shard.worker.url,
            start=turn.start,
            end=turn.end,
            fingerprint=turn.shard.worker.fingerprint,
        )
        for turn in turns
    )


def _quickest(
    workers: Iterable[WorkerView], key: VariantKey, head: WorkerId | None, costs: RouteCosts
) -> list[_Shard]:
    """Keep the quickest Worker of each range, and the one that is to begin."""
    ranked: dict[tuple[ShardRange, bool], tuple[tuple[float, int, WorkerId], _Shard]] = {}
    for worker in workers:
        seconds = (1 + worker.sessions) / worker.speed
        rank = (seconds, _tie(worker.worker_id, costs.tie_salt), worker.worker_id)
        begins = head is None or worker.worker_id == head
        for run in held_ranges(worker, key, ROUTABLE):
            known = ranked.get((run, begins))
            if known is None or rank < known[0]:
                ranked[run, begins] = (rank, _Shard(worker, run, seconds, begins))
    return [ranked[key][1] for key in sorted(ranked)]


def _tie(worker_id: WorkerId, salt: str) -> int:
    return crc32(f"{salt} {worker_id}".encode()) if salt else 0


def _check(shards: Sequence[_Shard], layer_count: int, head: WorkerId | None) -> None:
    missing = gaps_of(count_layers((shard.run for shard in shards), layer_count))
    if missing:
        raise NoRouteError(missing, f"Missing Layers: {', '.join(map(str, missing))}.")
    if not any(shard.may_begin and shard.run.start == 0 for shard in shards):
        raise NoRouteError((ShardRange(0, 1),), f"Worker {head} is not ready to serve Layer 0.")


def _quickest_turns(shards: Sequence[_Shard], layer_count: int, hop_seconds: float) -> list[_Turn]:
    """Find the cheapest turns from Layer 0 to the last, going up the Layers once.

    At each Layer every Shard that holds it has one turn open: the one that it is reached by
    cheapest, be it that this Shard goes on, or that it takes over here.
    """
    starting = defaultdict(list)
    for shard in shards:
        if shard.entry < shard.run.end:
            starting[shard.entry].append(shard)
    edges = {0, layer_count} | {edge for s in shards for edge in (s.entry, s.run.end)}
    reached: dict[int, _Turn] = {}
    open_turns: list[_Turn] = []
    for layer in sorted(edge for edge in edges if edge <= layer_count):
        open_turns = [turn.until(layer) for turn in open_turns if turn.shard.run.end >= layer]
        if layer:
            reached[layer] = min(open_turns, key=_Turn.cost)
        takeover = _Takeover(layer, reached.get(layer), hop_seconds)
        open_turns = [takeover.or_stay(turn) for turn in open_turns if turn.shard.run.end > layer]
        open_turns += [takeover.by(shard) for shard in starting[layer]]
    return _walk_back(reached, layer_count)


def _walk_back(reached: Mapping[int, _Turn], layer_count: int) -> list[_Turn]:
    turns = [reached[layer_count]]
    while turns[-1].start:
        turns.append(reached[turns[-1].start])
    return turns[::-1]


def _joined(turns: list[_Turn]) -> list[_Turn]:
    """Give a Shard that got two turns all that lies between them: a Session has one place there."""
    joined: list[_Turn] = []
    for turn in turns:
        earlier = next((i for i, other in enumerate(joined) if other.shard is turn.shard), None)
        if earlier is None:
            joined.append(turn)
        else:
            joined[earlier:] = [replace(joined[earlier], end=turn.end)]
    return joined
