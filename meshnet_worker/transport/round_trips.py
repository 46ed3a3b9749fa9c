"""How long pings take to a Peer and back: the shortest of the last few; pure.

Longer ones waited for something, on the way or in either Worker.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from meshnet_common.ids import WorkerId

MOST_REMEMBERED = 8
MOST_UNANSWERED = 8


class RoundTrips:
    """Those of one link."""

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}
        self._last: deque[float] = deque(maxlen=MOST_REMEMBERED)

    def sent(self, nonce: int, now: float) -> None:
        """Note a ping; of many that nobody answers the oldest are forgotten."""
        self._sent[nonce] = now
        if len(self._sent) > MOST_UNANSWERED:
            del self._sent[next(iter(self._sent))]

    def answered(self, nonce: int, now: float) -> None:
        """Note a pong; one that nobody waits for says nothing."""
        sent_at = self._sent.pop(nonce, None)
        if sent_at is not None:
            self._last.append(now - sent_at)

    def shortest(self) -> float | None:
        """Return the shortest of the last few; None before the first."""
        return min(self._last, default=None)


def shortest_trips(links: Iterable[tuple[WorkerId, RoundTrips]]) -> Mapping[WorkerId, float]:
    """Return the shortest to each Peer, over all links to it."""
    found: dict[WorkerId, float] = {}
    for worker_id, trips in links:
        seconds = trips.shortest()
        if seconds is not None:
            found[worker_id] = min(seconds, found.get(worker_id, seconds))
    return found
