"""Who serves one Variant, kept in the order in which a Route would take them; changed in place.

Workers with the same range in the same Locality stand in one row, the quickest first, so that a
choice looks at the beginnings of rows only. What one Layer costs on a Worker is the share of its
speed that one more Session would get.
"""

from collections.abc import Iterator

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.coverage import ROUTABLE, held_ranges
from meshnet_tracker.planning.localities import UNKNOWN, localities_of, near_peers
from meshnet_tracker.planning.route_rows import Row, Rows, Shard, bits_of
from meshnet_tracker.planning.snapshot import VariantKey, WorkerView

ANEW_SHARE = 8
"""Localities are worked out anew when one in so many Workers has measured or declared anew."""
NEAREST = 2


class VariantIndex:
    """All that a choice of a Route needs to know of one Variant."""

    def __init__(self, key: VariantKey) -> None:
        self._key = key
        self._shards: dict[WorkerId, Shard] = {}
        self._rows = Rows()
        self._by_region: dict[str, str] = {}
        self._trips: dict[tuple[str, str], float] = {}
        self._moved = 0

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
            worker_id=worker.worker_id,
            worker=worker,
            run=run,
            layer_seconds=_layer_seconds(worker, run, noted),
            noted=noted,
            locality=self._attached(worker) if old is None or is_moved else old.locality,
            round_trips=measured.round_trips if measured else dict(worker.round_trips),
            nearest=measured.nearest if measured else _nearest(worker),
        )
        self._shards[shard.worker_id] = shard
        if old is None:
            self._rows.put(shard)
        elif (old.run, old.locality) == (run, shard.locality):
            self._rows.change(old, shard)
        else:
            self._rows.remove(old)
            self._rows.put(shard)

    def note(self, worker_id: WorkerId, noted: int) -> None:
        """Take in that a Worker has more or fewer Sessions than it has reported."""
        shard = self._shards.get(worker_id)
        if shard is not None and shard.noted != noted:
            self._load(shard, shard.worker, noted)

    def take_load(self, worker: WorkerView, noted: int) -> None:
        """Take in what has become of a Worker's load, and of nothing else."""
        shard = self._shards.get(worker.worker_id)
        if shard is not None:
            self._load(shard, worker, noted)

    def remove(self, worker_id: WorkerId) -> None:
        old = self._shards.pop(worker_id, None)
        if old is not None:
            self._rows.remove(old)
            if old.locality:
                self._moved += 1

    def rows(self) -> list[Row]:
        """List the rows in the order of their ranges; nobody may change the list."""
        if self._moved * ANEW_SHARE >= max(1, len(self._shards)):
            self._work_out_localities()
        return self._rows.in_order

    def rows_by_seconds(self) -> Iterator[Row]:
        """Go through the rows in the order of what a Layer costs on the quickest of each."""
        self.rows()
        return (row for _, _, row in self._rows.by_seconds)

    def localities_with(self, layers: ShardRange) -> list[str]:
        """List the Localities that hold all of these Layers themselves, if there are several."""
        wanted = bits_of(layers)
        held = self._rows.bits_by_locality()
        if len(held) < 2:
            return []
        return sorted(place for place, bits in held.items() if place and not wanted & ~bits)

    def rows_of(self, layers: ShardRange) -> list[Row]:
        """List the rows that hold any of these Layers; nobody may change the list."""
        rows, wanted = self.rows(), bits_of(layers)
        held = self._rows.bits_by_locality().values()
        if not any(bits & ~wanted for bits in held):
            return rows
        return [row for row in rows if row.bits & wanted]

    def trip_between(self, one: str, two: str) -> float | None:
        """Return the shortest round trip that was measured between two Localities."""
        return self._trips.get((one, two) if one <= two else (two, one))

    def _load(self, shard: Shard, worker: WorkerView, noted: int) -> None:
        shard.worker, shard.noted = worker, noted
        seconds = _layer_seconds(worker, shard.run, noted)
        if seconds != shard.layer_seconds:
            self._rows.set_seconds(shard, seconds)

    def _run(self, worker: WorkerView) -> ShardRange | None:
        return max(held_ranges(worker, self._key, ROUTABLE), key=len, default=None)

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
                self._rows.remove(shard)
                shard.locality = known[shard.worker_id]
                self._rows.put(shard)
        self._by_region = {
            shard.worker.region: shard.locality
            for _, shard in sorted(self._shards.items(), reverse=True)
            if shard.worker.region
        }
        self._trips = self._shortest_trips()

    def _shortest_trips(self) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        for shard in self._shards.values():
            here = shard.locality
            for peer_id, seconds in shard.round_trips.items():
                peer = self._shards.get(peer_id)
                if peer is not None and here and peer.locality:
                    there = peer.locality
                    between = (here, there) if here <= there else (there, here)
                    found[between] = min(found.get(between, seconds), seconds)
        return found


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
