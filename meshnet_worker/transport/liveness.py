"""Which Peer is lost by its silence and which stalls: the rules, given `now`; pure.

Slowness is no fault: whatever arrives is a sign of life. A Worker that was paused itself holds the
pause against no Peer, whose frames waited for it meanwhile; but only the pause: one that is paused
again and again still finds a silent Peer.
"""

from dataclasses import dataclass

from meshnet_common.ids import WorkerId

LOOKS_IN_A_ROUND = 2
"""So often a Worker looks after its links between two pings."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """After how many seconds a link is pinged, and what is a fault of a Peer."""

    ping_seconds: float = 1.0
    silence_seconds: float = 3.0
    """A link on which nothing arrives for so long is lost."""
    stall_seconds: float = 3.0
    """A Peer stalls whose engine step takes so much longer than its size explains."""
    pause_seconds: float = 1.5
    """A Worker that does not look after its links for so long was paused itself."""

    @property
    def look_seconds(self) -> float:
        """How often a Worker looks after its links."""
        return self.ping_seconds / LOOKS_IN_A_ROUND


class Pulse:
    """Whether this Worker itself has been running all the time."""

    def __init__(self, now: float, deadlines: Deadlines) -> None:
        self._last_beat = now
        self._deadlines = deadlines

    def beat(self, now: float) -> float:
        """Note that this Worker runs; returns for how many seconds it was paused before."""
        gap_seconds = now - self._last_beat
        self._last_beat = now
        if gap_seconds <= self._deadlines.pause_seconds:
            return 0.0
        # What a look is late by is the pause; the rest is how long it lay open to hear.
        return gap_seconds - self._deadlines.look_seconds


class Signs:
    """What has been heard on one open link."""

    def __init__(self, now: float, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._heard = now
        self._pinged = now

    def hear(self, now: float) -> None:
        """Note a sign of life."""
        self._heard = max(now, self._heard)

    def excuse(self, paused_seconds: float, now: float) -> None:
        """Leave out of a silence what was a pause of this Worker's own."""
        self._heard = min(now, self._heard + paused_seconds)

    def is_silent(self, now: float) -> bool:
        return now - self._heard >= self._deadlines.silence_seconds

    def is_to_be_pinged(self, now: float) -> bool:
        """Whether a ping is due; the answer counts as having sent it."""
        is_due = now - self._pinged >= self._deadlines.ping_seconds
        if is_due:
            self._pinged = now
        return is_due


class Stalls:
    """The Peers whose engines do not get on."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._told: dict[WorkerId, float] = {}

    def is_news(self, worker_id: WorkerId, overdue_seconds: float, now: float) -> bool:
        """Whether a pong is news of a stall; one that lasts is news again and again.

        Who opens a Session there meanwhile has not heard of it before.
        """
        stall_seconds = self._deadlines.stall_seconds
        if not overdue_seconds >= stall_seconds:
            self._told.pop(worker_id, None)
            return False
        if now - self._told.get(worker_id, float("-inf")) < stall_seconds:
            return False
        self._told[worker_id] = now
        return True

    def forget(self, worker_id: WorkerId) -> None:
        """Forget a Peer that is gone."""
        self._told.pop(worker_id, None)
