"""To which Peers a Worker is to measure the round trip: a few with each heartbeat; pure.

First those that may come before or after it on a Route, then those that say that they are near,
then anybody: so Localities are found out, also by who serves nothing yet. Who knows enough is left
alone, and so is a Peer that has measured the same way from its own end.
"""

from collections.abc import Iterator, Sequence

from xxhash import xxh32_intdigest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import PeerAddress
from meshnet_tracker.planning.route_index import VariantIndex
from meshnet_tracker.planning.route_rows import Row
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.snapshot import WorkerView

ENOUGH = 16
"""A Worker that knows the way to so many Peers is asked no more."""
MOST_ASKED = 4
PERIOD_SECONDS = 30.0
"""For so long the same Peers are asked for; those that nobody reaches are left then."""
DRAWS = 4


def peers_to_measure(
    table: RouteTable, worker_id: WorkerId, now: float, limit: int = MOST_ASKED
) -> tuple[PeerAddress, ...]:
    """Choose Peers by chance, such that every Tracker draws the same at one time."""
    worker = table.worker(worker_id)
    if worker is None or len(worker.round_trips) >= ENOUGH:
        return ()
    known = {worker_id, *(peer_id for peer_id, _ in worker.round_trips)}
    wanted: dict[WorkerId, PeerAddress] = {}
    for peer_id in _drawn(table, worker, f"{worker_id} {now // PERIOD_SECONDS}"):
        peer = table.worker(peer_id)
        if peer is None or peer_id in known or _has_measured(peer, worker_id):
            continue
        wanted[peer_id] = PeerAddress(worker_id=peer_id, url=peer.url)
        if len(wanted) == limit:
            break
    return tuple(wanted.values())


def _has_measured(worker: WorkerView, peer: WorkerId) -> bool:
    return any(known == peer for known, _ in worker.round_trips)


def _drawn(table: RouteTable, worker: WorkerView, salt: str) -> Iterator[WorkerId]:
    """Draw some Workers, perhaps one more than once."""
    served = sorted({shard.variant for shard in worker.held})
    indexes = [table.of_variant(key) for key in served]
    named = [table.names(worker.region) if worker.region else (), table.names()]
    for number in range(DRAWS):
        for place, index in enumerate(indexes):
            drawn = _next_to(index, worker, f"{salt} {number} {place}")
            if drawn is not None:
                yield drawn
        for place, names in enumerate(named):
            if names:
                yield names[_place(names, f"{salt} {number} names {place}")]


def _next_to(index: VariantIndex, worker: WorkerView, salt: str) -> WorkerId | None:
    """Draw one that serves the same Variant, rather one whose Layers go on where these end."""
    rows = index.rows()
    own = index.get(worker.worker_id)
    row: Row | None = None
    for number in range(DRAWS if rows else 0):
        row = rows[_place(rows, f"{salt} {number}")]
        run = row.run
        if own is None or (run != own.run and run.touches(own.run)):
            break
    return row[_place(row, salt)].worker_id if row else None


def _place(things: Sequence[object], salt: str) -> int:
    return xxh32_intdigest(salt.encode()) % len(things)
