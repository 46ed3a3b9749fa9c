"""Workers that serve one Variant, by rows, and the rows in two orders that are kept as they change.

A row is Workers with the same range in the same Locality, the quickest first. Rows are in the order
of their ranges, and in that of the quickest of each: most change only how quick they are, and then
only their own place is looked for anew.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import WorkerView

Place = tuple[int, int, str]
"""Where a row stands: its first Layer, its end, and the Locality."""


@dataclass(slots=True, eq=False)
class Shard:
    """A run that is ready. Of several runs on one Worker only the longest can be on a Route."""

    worker_id: WorkerId
    worker: WorkerView
    run: ShardRange
    layer_seconds: float
    noted: int
    """Sessions that it has more than it has reported; less is negative."""
    locality: str
    round_trips: Mapping[WorkerId, float]
    nearest: tuple[WorkerId, ...]
    """The Peers to whom these are shortest."""

    def room(self) -> float:
        """Bytes for keys and values that are free, as far as it tells."""
        free = self.worker.kv_bytes_free
        return float("inf") if free is None else free


class Standing(NamedTuple):
    """A Shard's place in its row."""

    seconds: float
    worker_id: WorkerId
    shard: Shard


class Row(list[Standing]):
    """Shards with the same Layers in one Locality, the quickest first; never empty."""

    __slots__ = ("bits", "locality", "place", "run")

    def __init__(self, first: Shard) -> None:
        super().__init__((_standing(first),))
        self.run = first.run
        self.locality = first.locality
        self.place = _place(first)
        self.bits = bits_of(first.run)


class Rows:
    """All rows of one Variant."""

    def __init__(self) -> None:
        self.in_order: list[Row] = []
        """By their ranges."""
        self.by_seconds: list[tuple[float, Place, Row]] = []
        """By what a Layer costs on the quickest of each."""
        self._places: list[Place] = []
        self._rows: dict[Place, Row] = {}
        self._bits: dict[str, int] | None = {}

    def put(self, shard: Shard) -> None:
        place = _place(shard)
        row = self._rows.get(place)
        if row is None:
            self._begin(Row(shard))
            return
        first = row[0]
        insort(row, _standing(shard))
        if row[0] is not first:
            self._rank(row, first.seconds)

    def remove(self, shard: Shard) -> None:
        row = self._rows[_place(shard)]
        at = bisect_left(row, _standing(shard))
        if len(row) == 1:
            self._end(row)
            return
        del row[at]
        if not at:
            self._rank(row, shard.layer_seconds)

    def change(self, old: Shard, new: Shard) -> None:
        """Let one Shard stand for another one in the same row, which may be the same Worker's."""
        row = self._rows[_place(old)]
        before = row[0].seconds
        if len(row) == 1:
            row[0] = _standing(new)
        else:
            del row[bisect_left(row, _standing(old))]
            insort(row, _standing(new))
        if row[0].seconds != before:
            self._rank(row, before)

    def set_seconds(self, shard: Shard, seconds: float) -> None:
        """Let a Layer cost so much on this Worker from now on."""
        row = self._rows[_place(shard)]
        before = row[0].seconds
        if len(row) == 1:
            shard.layer_seconds = seconds
            row[0] = _standing(shard)
        else:
            del row[bisect_left(row, _standing(shard))]
            shard.layer_seconds = seconds
            insort(row, _standing(shard))
        if row[0].seconds != before:
            self._rank(row, before)

    def bits_by_locality(self) -> dict[str, int]:
        """Show which Layers each Locality holds."""
        if self._bits is None:
            self._bits = {}
            for row in self.in_order:
                self._bits[row.locality] = self._bits.get(row.locality, 0) | row.bits
        return self._bits

    def _begin(self, row: Row) -> None:
        at = bisect_left(self._places, row.place)
        self._places.insert(at, row.place)
        self.in_order.insert(at, row)
        self._rows[row.place] = row
        insort(self.by_seconds, (row[0].seconds, row.place, row))
        if self._bits is not None:
            self._bits[row.locality] = self._bits.get(row.locality, 0) | row.bits

    def _end(self, row: Row) -> None:
        at = bisect_left(self._places, row.place)
        del self._places[at]
        del self.in_order[at]
        del self._rows[row.place]
        self._unrank(row, row[0].seconds)
        self._bits = None

    def _rank(self, row: Row, before: float) -> None:
        self._unrank(row, before)
        insort(self.by_seconds, (row[0].seconds, row.place, row))

    def _unrank(self, row: Row, before: float) -> None:
        # A place stands right before what begins with it.
        del self.by_seconds[bisect_left(self.by_seconds, (before, row.place))]


def bits_of(run: ShardRange) -> int:
    """Show Layers as bits, so that many are compared at once."""
    return (1 << run.end) - (1 << run.start)


def _place(shard: Shard) -> Place:
    return shard.run.start, shard.run.end, shard.locality


def _standing(shard: Shard) -> Standing:
    return Standing(shard.layer_seconds, shard.worker_id, shard)
