"""Whom a Route's search looks at: of few Workers all, of many the quickest of each row.

A row is Workers with equal ranges in one Locality. Equals of a row take turns by a salt, so that
requests that come at once are spread; with an affinity a conversation's own Workers come first,
as long as they are not much slower. Who has too little room for keys and values comes last.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from zlib import crc32

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.affinity import AFFINITY_SPREAD, share
from meshnet_tracker.planning.coverage import count_layers, gaps_of
from meshnet_tracker.planning.route_index import Row, Shard, Standing, VariantIndex

FEW_SHARDS = 16
"""Of so many all are looked at."""
MOST_PICKS = 24
MOST_OF_ROW = 3
MOST_SCANNED = 256
"""So many of a row are looked at for the one that suits best."""
NEAR_PEERS = 2
"""So many nearest Peers of each pick are looked at too."""
FULL_LAYER_SECONDS = 1e3
"""What a Layer costs on a Worker that has no room; more than any other way."""
TIE_SPREAD = 1e-9


@dataclass(frozen=True, slots=True)
class Taste:
    """Whom a request may get, and whom it would rather have."""

    exclude: frozenset[WorkerId]
    head: WorkerId | None
    tie_salt: str
    affinity: str
    kv_bytes_per_layer: int

    def allows(self, shard: Shard) -> bool:
        return shard.worker_id not in self.exclude

    def is_full(self, shard: Shard, layer_count: int) -> bool:
        """Whether it has no room for one more Session on so many Layers."""
        return self.kv_bytes_per_layer * layer_count * (1 + shard.noted) > shard.room()

    def suited_seconds(self, one: Standing) -> float:
        """What one Layer costs there, and more where the affinity does not suit."""
        return one.seconds * (1 + AFFINITY_SPREAD * share(self.affinity, one.worker_id))

    def layer_seconds(self, shard: Shard, layer_count: int) -> float:
        """What one Layer costs there, for this request."""
        spread, salt = TIE_SPREAD, self.tie_salt
        if self.affinity:
            spread, salt = AFFINITY_SPREAD, self.affinity
        seconds = shard.layer_seconds
        if salt:
            seconds *= 1 + spread * share(salt, shard.worker_id)
        return seconds + FULL_LAYER_SECONDS * self.is_full(shard, layer_count)


def picks(index: VariantIndex, layers: ShardRange, taste: Taste) -> list[Shard]:
    """Pick Workers that together hold all of these Layers, as far as anybody does; by id."""
    rows = [row for run, row in index.rows() if run.start < layers.end and layers.start < run.end]
    if sum(map(len, rows)) <= FEW_SHARDS:
        picked = [one.shard for row in rows for one in row if taste.allows(one.shard)]
    else:
        each = max(1, min(MOST_OF_ROW, MOST_PICKS // len(rows)))
        picked = [shard for row in rows for shard in _of_row(row, each, taste)]
        picked = _thinned(picked, layers)
        picked += _nearest(picked, index, taste)
    head = index.get(taste.head) if taste.head else None
    if head is not None and taste.allows(head):
        picked.append(head)
    by_id = {shard.worker_id: shard for shard in picked}
    return [by_id[worker_id] for worker_id in sorted(by_id)]


def _of_row(row: Row, count: int, taste: Taste) -> Iterator[Shard]:
    layer_count = len(row[0].shard.run)
    ordered = _suiting(row, count, taste) if taste.affinity else _in_turn(row, taste.tie_salt)
    full: list[Shard] = []
    for shard in ordered:
        if not taste.allows(shard):
            continue
        if taste.is_full(shard, layer_count):
            full.append(shard)
            continue
        yield shard
        count -= 1
        if not count:
            return
    yield from full[:count]


def _in_turn(row: Row, salt: str) -> Iterator[Shard]:
    """Go through a row from a salted place among its quickest on."""
    first = row[0]
    equals = bisect_right(row, first.seconds, key=_seconds)
    begin = crc32(f"{salt} {first.worker_id}".encode()) % equals if salt else 0
    turned = chain(range(begin, equals), range(begin), range(equals, len(row)))
    return (row[place].shard for place in turned)


def _suiting(row: Row, count: int, taste: Taste) -> Iterator[Shard]:
    """Go through a row, those first that suit the affinity best for their cost."""
    most = row[min(count, len(row)) - 1].seconds * (1 + AFFINITY_SPREAD)
    end = min(bisect_right(row, most, key=_seconds), MOST_SCANNED)
    scored = sorted(
        Standing(taste.suited_seconds(one), one.worker_id, one.shard) for one in islice(row, end)
    )
    rest = (one.shard for one in islice(row, end, None))
    return chain((one.shard for one in scored), rest)


def _seconds(standing: Standing) -> float:
    return standing.seconds


def _thinned(picked: list[Shard], layers: ShardRange) -> list[Shard]:
    """Keep the quickest, and whoever else it takes to hold all Layers that anybody holds."""
    if len(picked) <= MOST_PICKS:
        return picked
    ordered = sorted(picked, key=lambda shard: (shard.layer_seconds, shard.worker_id))
    kept, others = ordered[:MOST_PICKS], ordered[MOST_PICKS:]
    while gap := _first_gap(kept, layers):
        holders = [one for one in others if one.run.start <= gap.start < one.run.end]
        if not holders:
            break
        kept.append(max(holders, key=lambda shard: (shard.run.end, -shard.layer_seconds)))
    return kept


def _first_gap(shards: Iterable[Shard], layers: ShardRange) -> ShardRange | None:
    gaps = gaps_of(count_layers((shard.run for shard in shards), layers.end))
    return next((gap for gap in gaps if gap.end > layers.start), None)


def _nearest(picked: list[Shard], index: VariantIndex, taste: Taste) -> list[Shard]:
    found = []
    for shard in picked:
        peers = sorted((seconds, peer) for peer, seconds in shard.round_trips.items())
        known = (index.get(peer) for _, peer in peers)
        able = (one for one in known if one is not None and taste.allows(one))
        found += list(islice(able, NEAR_PEERS))
    return found[:MOST_PICKS]
