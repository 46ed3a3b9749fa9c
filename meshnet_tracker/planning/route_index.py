"""Who serves one Variant, kept in the order in which a Route would take them; changed in place.

Workers with the same range in the same Locality stand in one row, the quickest first, so that a
choice looks at the beginnings of rows only. What one Layer costs on a Worker is the share of its
speed that one more Session would get.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.coverage import ROUTABLE, held_ranges
from meshnet_tracker.planning.localities import UNKNOWN, localities_of, near_peers
from meshnet_tracker.planning.snapshot import VariantKey, WorkerView

ANEW_SHARE = 8
"""Localities are worked out anew when one in so many Workers has measured or declared anew."""
NEAREST = 2


@dataclass(slots=True, eq=False)
class Shard:
    """A run that is ready. Of several runs on one Worker only the longest can be on a Route."""

    worker: WorkerView
    run: ShardRange
    layer_seconds: float
    noted: int
    """Sessions that it has more than it has reported; less is negative."""
    locality: str
    round_trips: Mapping[WorkerId, float]
    nearest: tuple[WorkerId, ...]
    """The Peers to whom these are shortest."""

    @property
    def worker_id(self) -> WorkerId:
        return self.worker.worker_id

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

    __slots__ = ("bits", "locality", "run")

    def __init__(self, run: ShardRange, locality: str) -> None:
        super().__init__()
        self.run = run
        self.locality = locality
        self.bits = bits_of(run)


def bits_of(run: ShardRange) -> int:
    """Show Layers as bits, so that many are compared at once."""
    return (1 << run.end) - (1 << run.start)


class VariantIndex:
    """All that a choice of a Route needs to know of one Variant."""

    def __init__(self, key: VariantKey) -> None:
        self._key = key
        self._shards: dict[WorkerId, Shard] = {}
        self._rows: dict[tuple[int, int, str], Row] = {}
        self._by_region: dict[str, str] = {}
        self._trips: dict[tuple[str, str], float] = {}
        self._moved = 0
        self._in_order: list[Row] | None = None
        self._bits: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._shards)

    def get(self, worker_id: WorkerId) -> Shard | None:
        return self._shards.get(worker_id)

    def put(self, worker: WorkerView, noted: int) -> None:
        """Take in what has become of a Worker, which serves some of the Variant or none."""
        old = self._shards.get(worker.worker_id)
        run = old.run if old and old.worker.held is worker.held else self._run(worker)
        if run is None:
            self.remove(worker.worker_id)
            return
        is_moved = old is None or _has_moved(old.worker, worker)
        if is_moved and (worker.round_trips or worker.region or (old and old.locality)):
            self._moved += 1
        measured = old if old and old.worker.round_trips is worker.round_trips else None
        shard = Shard(
            worker=worker,
            run=run,
            layer_seconds=_layer_seconds(worker, run, noted),
            noted=noted,
            locality=self._attached(worker) if old is None or is_moved else old.locality,
            round_trips=measured.round_trips if measured else dict(worker.round_trips),
            nearest=measured.nearest if measured else _nearest(worker),
        )
        if old is not None:
            self._take_out(old)
        self._put_in(shard)

    def note(self, worker_id: WorkerId, noted: int) -> None:
        """Take in that a Worker has more or fewer Sessions than it has reported."""
        shard = self._shards.get(worker_id)
        if shard is not None and shard.noted != noted:
            row = self._rows[_place(shard)]
            del row[bisect_left(row, _standing(shard))]
            shard.noted = noted
            shard.layer_seconds = _layer_seconds(shard.worker, shard.run, noted)
            insort(row, _standing(shard))

    def remove(self, worker_id: WorkerId) -> None:
        old = self._shards.get(worker_id)
        if old is not None:
            self._take_out(old)
            if old.locality:
                self._moved += 1

    def rows(self) -> list[Row]:
        """List the rows in the order of their ranges."""
        if self._moved * ANEW_SHARE >= max(1, len(self._shards)):
            self._work_out_localities()
        if self._in_order is None:
            self._in_order = [row for _, row in sorted(self._rows.items(), key=_by_place)]
            self._bits = {}
            for row in self._in_order:
                self._bits[row.locality] = self._bits.get(row.locality, 0) | row.bits
        return self._in_order

    def localities_with(self, layers: ShardRange) -> list[str]:
        """List the Localities that hold all of these Layers themselves, if there are several."""
        wanted = bits_of(layers)
        if len(self._bits) < 2:
            return []
        return sorted(place for place, bits in self._bits.items() if place and not wanted & ~bits)

    def rows_of(self, layers: ShardRange) -> list[Row]:
        """List the rows that hold any of these Layers."""
        wanted = bits_of(layers)
        return [row for row in self.rows() if row.bits & wanted]

    def trip_between(self, one: str, two: str) -> float | None:
        """Return the shortest round trip that was measured between two Localities."""
        return self._trips.get((one, two) if one <= two else (two, one))

    def _run(self, worker: WorkerView) -> ShardRange | None:
        return max(held_ranges(worker, self._key, ROUTABLE), key=len, default=None)

    def _put_in(self, shard: Shard) -> None:
        self._shards[shard.worker_id] = shard
        row = self._rows.get(_place(shard))
        if row is None:
            row = self._rows[_place(shard)] = Row(shard.run, shard.locality)
            self._in_order = None
        insort(row, _standing(shard))

    def _take_out(self, shard: Shard) -> None:
        del self._shards[shard.worker_id]
        row = self._rows[_place(shard)]
        del row[bisect_left(row, _standing(shard))]
        if not row:
            del self._rows[_place(shard)]
            self._in_order = None

    def _attached(self, worker: WorkerView) -> str:
        """Say where a Worker is until Localities are worked out anew."""
        near = (self._shards.get(peer) for peer in sorted(near_peers(worker)))
        found = (shard.locality for shard in near if shard and shard.locality)
        return next(found, self._by_region.get(worker.region, UNKNOWN))

    def _work_out_localities(self) -> None:
        self._moved = 0
        known = localities_of(shard.worker for shard in self._shards.values())
        for shard in list(self._shards.values()):
            if shard.locality != known[shard.worker_id]:
                self._take_out(shard)
                self._put_in(replace(shard, locality=known[shard.worker_id]))
        self._by_region = {
            shard.worker.region: shard.locality
            for _, shard in sorted(self._shards.items(), reverse=True)
            if shard.worker.region
        }
        self._trips = self._shortest_trips()

    def _shortest_trips(self) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = defaultdict(lambda: float("inf"))
        for shard in self._shards.values():
            here = shard.locality
            for peer_id, seconds in shard.round_trips.items():
                peer = self._shards.get(peer_id)
                if peer is not None and here and peer.locality:
                    there = peer.locality
                    between = (here, there) if here <= there else (there, here)
                    found[between] = min(found[between], seconds)
        return dict(found)


def _layer_seconds(worker: WorkerView, run: ShardRange, noted: int) -> float:
    rates = worker.layer_rates
    speed = rates[min(len(run), len(rates)) - 1] if rates else worker.speed
    return (1 + max(0, worker.sessions + worker.queued + noted)) / speed


def _has_moved(before: WorkerView, after: WorkerView) -> bool:
    if before.round_trips is after.round_trips and before.region == after.region:
        return False
    return before.region != after.region or near_peers(before) != near_peers(after)


def _nearest(worker: WorkerView) -> tuple[WorkerId, ...]:
    trips = sorted((seconds, peer) for peer, seconds in worker.round_trips)
    return tuple(peer for _, peer in trips[:NEAREST])


def _by_place(row: tuple[tuple[int, int, str], Row]) -> tuple[int, int, str]:
    return row[0]


def _place(shard: Shard) -> tuple[int, int, str]:
    return shard.run.start, shard.run.end, shard.locality


def _standing(shard: Shard) -> Standing:
    return Standing(shard.layer_seconds, shard.worker_id, shard)
