"""Which Peers are to be measured, and what was found; pure, `now` in seconds."""

from collections.abc import Iterable, Mapping

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import PeerAddress, RoundTrip

MOST_ASKED = 8
"""So many Peers wait to be measured; of more the newest."""
MOST_TOLD = 64
KEEP_SECONDS = 1800.0
"""A round trip that was measured longer ago is told no more."""
SCHEMES = ("http://", "https://")


class PeerTrips:
    """Round trips to Peers that the Tracker wants to know."""

    def __init__(self, worker_id: WorkerId) -> None:
        self._worker_id = worker_id
        self._asked: dict[str, PeerAddress] = {}
        self._found: dict[WorkerId, tuple[float, float]] = {}

    def ask(self, peers: Iterable[PeerAddress]) -> None:
        """Take up which Peers are to be measured."""
        for peer in peers:
            if peer.worker_id != self._worker_id and peer.url.lower().startswith(SCHEMES):
                self._asked.pop(peer.worker_id, None)
                self._asked[peer.worker_id] = peer
        for worker_id in list(self._asked)[:-MOST_ASKED]:
            del self._asked[worker_id]

    def next_peer(self) -> PeerAddress | None:
        """Take out the Peer that is to be measured next."""
        worker_id = next(iter(self._asked), None)
        return None if worker_id is None else self._asked.pop(worker_id)

    def measured(self, worker_id: WorkerId, seconds: float, now: float) -> None:
        self._found[worker_id] = seconds, now

    def told(self, linked: Mapping[WorkerId, float], now: float) -> tuple[RoundTrip, ...]:
        """List round trips by Peer: of links as they are now, else as they were measured.

        Of too many the shortest are told: they say who is near.
        """
        self._found = {
            worker_id: (seconds, at)
            for worker_id, (seconds, at) in self._found.items()
            if now - at < KEEP_SECONDS
        }
        known = {worker_id: seconds for worker_id, (seconds, _) in self._found.items()}
        known.update(linked)
        shortest = sorted(known.items(), key=lambda one: (one[1], one[0]))[:MOST_TOLD]
        return tuple(
            RoundTrip(worker_id=peer, seconds=seconds) for peer, seconds in sorted(shortest)
        )
