"""Keeps the Sessions that begin on a Hop in groups that travel together; pure, `now` in seconds.

Left alone, Sessions scatter: each Hop runs whatever has just come, mostly single rows, and reads
all its weights for each of them. So the first Hop of a Route waits, at most about as long as a
pass takes, until a group is complete. Later Hops run together what has come together.
"""

from meshnet_worker.engine.scheduler import Lane, WaitingSegments

ACTIVE_SECONDS = 1.0
"""A Session that was not fed for so long is waited for no more."""
MOST_PATIENCE_SECONDS = 0.05


class Groups:
    """Who decodes on the lanes of this engine, and how long their passes take."""

    def __init__(self) -> None:
        self.count = 1
        """How many groups there are: as many Hops can be busy at once."""
        self._fed: dict[int, tuple[Lane, float]] = {}
        self._pass_seconds: dict[Lane, float] = {}

    def feed(self, session: int, lane: Lane, tokens: int, now: float) -> None:
        """A segment of a Session has come; only Decode Steps make it a member."""
        if tokens == 1 and lane.begins_model:
            self._fed[session] = (lane, now)
        else:
            self._fed.pop(session, None)

    def forget(self, session: int) -> None:
        self._fed.pop(session, None)

    def passed(self, lane: Lane, seconds: float) -> None:
        """A pass of Decode Steps took so long."""
        self._pass_seconds[lane] = seconds

    def width(self, lane: Lane, now: float) -> int:
        """Decode Steps that make a group of this lane complete, at least one."""
        since = now - ACTIVE_SECONDS
        members = sum(fed == lane and at >= since for fed, at in self._fed.values())
        return max(1, -(-members // self.count))

    def wait_seconds(self, waiting: WaitingSegments, now: float) -> float:
        """How long the next Batch may still wait for the rest of its group; 0 to run it now."""
        heads = waiting.heads()
        if not heads or any(head.lane != heads[0].lane or head.tokens > 1 for head in heads):
            return 0.0
        lane = heads[0].lane
        if not lane.begins_model or len(heads) >= self.width(lane, now):
            return 0.0
        _, since = self._fed.get(heads[0].session, (lane, now - ACTIVE_SECONDS))
        patience = min(MOST_PATIENCE_SECONDS, self._pass_seconds.get(lane, 0.0))
        return max(0.0, since + patience - now)
