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

from meshnet_common.affinity import share
from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.route_index import VariantIndex
from meshnet_tracker.planning.route_rows import Row, Shard, Standing, bits_of

AFFINITY_SPREAD = 0.25
"""The Worker that suits a conversation least is made dearer by so much: load outweighs affinity."""
FEW_SHARDS = 24
"""Of so many all are looked at."""
MOST_PICKS = 16
MOST_OF_ROW = 3
MOST_SCANNED = 256
"""So many of a row are looked at for the one that suits best."""
MOST_NEAR = 6
"""So many Peers that are near to some of them are looked at too."""
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
        if not self.kv_bytes_per_layer:
            return False
        sessions = 1 + max(0, shard.noted)
        return self.kv_bytes_per_layer * layer_count * sessions > shard.room()

    def suited_seconds(self, one: Standing) -> float:
        """What one Layer costs there, and more where the affinity does not suit."""
        return one.seconds * (1 + AFFINITY_SPREAD * share(self.affinity, one.worker_id))

    def layer_seconds(self, shard: Shard, layer_count: int) -> float:
        """What one Layer costs there, for this request."""
        seconds = shard.layer_seconds
        if self.affinity:
            seconds *= 1 + AFFINITY_SPREAD * share(self.affinity, shard.worker_id)
        elif self.tie_salt:
            seconds *= 1 + TIE_SPREAD * share(self.tie_salt, shard.worker_id)
        if self.kv_bytes_per_layer and self.is_full(shard, layer_count):
            seconds += FULL_LAYER_SECONDS
        return seconds


def picks(index: VariantIndex, layers: ShardRange, taste: Taste) -> list[Shard]:
    """Pick Workers that together hold all of these Layers, as far as anybody does; by id."""
    rows = index.rows_of(layers)
    if len(rows) <= FEW_SHARDS and sum(map(len, rows)) <= FEW_SHARDS:
        picked = [one.shard for row in rows for one in row if taste.allows(one.shard)]
    elif len(rows) <= MOST_PICKS:
        each = min(MOST_OF_ROW, MOST_PICKS // len(rows))
        picked = [shard for row in rows for shard in _of_row(row, each, taste)]
        picked += _nearest(picked, layers, index, taste)
    else:
        picked = _of_many(rows, layers, index, taste)
        picked += _nearest(picked, layers, index, taste)
    head = index.get(taste.head) if taste.head else None
    if head is not None and taste.allows(head) and _reaches(head.run, layers):
        picked.append(head)
    by_id = {shard.worker_id: shard for shard in picked}
    return [by_id[worker_id] for worker_id in sorted(by_id)]


def _reaches(run: ShardRange, layers: ShardRange) -> bool:
    return run.start < layers.end and layers.start < run.end


def _of_row(row: Row, count: int, taste: Taste) -> Iterator[Shard]:
    layer_count = len(row.run)
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


def _of_many(rows: list[Row], layers: ShardRange, index: VariantIndex, taste: Taste) -> list[Shard]:
    """Pick the quickest holder of each Layer, and with them those of one Locality.

    Where no Locality holds all, those who hold most take their place: with them Hops are few.
    """
    chosen = _holders(index.rows_by_seconds(), layers, taste)
    if places := index.localities_with(layers):
        # Another one for another request.
        place = places[crc32(taste.tie_salt.encode()) % len(places)]
        local = (row for row in index.rows_by_seconds() if row.locality == place)
        return chosen + _holders(local, layers, taste)
    return [*chosen, *_reaching(rows, layers, taste)]


def _holders(ordered: Iterable[Row], layers: ShardRange, taste: Taste) -> list[Shard]:
    """List those who hold a Layer that nobody before them holds."""
    left = bits_of(layers)
    holders = []
    for row in ordered:
        if row.bits & left and (shard := _first_of(row, taste)) is not None:
            holders.append(shard)
            left &= ~row.bits
            if not left:
                break
    return holders


def _first_of(row: Row, taste: Taste) -> Shard | None:
    """Give the first of a row; most rows of a large mesh are one Shard, or one is the quickest."""
    first = row[0].shard
    if first.worker_id not in taste.exclude:
        if len(row) == 1:
            return first
        is_first = not taste.affinity and row[0].seconds < row[1].seconds
        if is_first and not taste.is_full(first, len(row.run)):
            return first
    return next(_of_row(row, 1, taste), None)


def _reaching(rows: list[Row], layers: ShardRange, taste: Taste) -> Iterator[Shard]:
    """Go through the fewest that together hold all Layers; rows come by their first Layer."""
    layer, best = layers.start, None
    for row in rows:
        run = row.run
        if run.start > layer and best is not None:
            yield from _of_row(best, 1, taste)
            layer, best = best.run.end, None
        if run.end > layer and (best is None or run.end > best.run.end):
            best = row
    if best is not None:
        yield from _of_row(best, 1, taste)


def _nearest(
    picked: list[Shard], layers: ShardRange, index: VariantIndex, taste: Taste
) -> list[Shard]:
    """Add the Peers to which some have measured the shortest round trips."""
    known = (index.get(peer) for shard in picked for peer in shard.nearest)
    able = (one for one in known if one and taste.allows(one) and _reaches(one.run, layers))
    return list(islice(able, MOST_NEAR))
