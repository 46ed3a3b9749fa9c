"""Which Peer is lost by its silence and which stalls: the rules, given `now`; pure.

Slowness is no fault: whatever arrives is a sign of life. A Worker that was paused itself holds
nothing against its Peers, whose frames waited for it meanwhile.
"""

from dataclasses import dataclass

from meshnet_common.ids import WorkerId


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
        return self.ping_seconds / 2


class Pulse:
    """Whether this Worker itself has been running all the time."""

    def __init__(self, now: float, deadlines: Deadlines) -> None:
        self._last_beat = now
        self._deadlines = deadlines

    def beat(self, now: float) -> bool:
        """Note that this Worker runs; returns whether it was paused before."""
        was_paused = now - self._last_beat > self._deadlines.pause_seconds
        self._last_beat = now
        return was_paused


class Signs:
    """What has been heard on one open link."""

    def __init__(self, now: float, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._heard = now
        self._pinged = now

    def hear(self, now: float) -> None:
        """Note a sign of life, or begin anew after a pause of this Worker's own."""
        self._heard = max(now, self._heard)

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
