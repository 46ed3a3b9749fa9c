"""Whom an answer's Head Worker may be next, and for how long somebody is looked for; pure.

What failed long ago counts no more, and an answer that has grown since is as patient as at first.
No number of faults ends the wait: who has failed often is only asked more rarely.
"""

from dataclasses import dataclass, field

from meshnet_common.ids import WorkerId

MEMORY_SECONDS = 60.0
"""A fault counts for so long."""
SPENT_REST_SECONDS = 5.0
"""So long one rests whose quick retries are spent; it may reload, and be there at any time."""
MOST_FELLED = 2
"""So many Workers lost one after the other at the same place of an answer are no accident."""
MOST_FAILED_ROUTES = 2
"""A Head Worker has mended its Route for half a minute before it gives up, so seldom is enough."""


@dataclass(frozen=True, slots=True)
class ProxyPolicy:
    """How patient the proxy is."""

    connect_retries: int = 8
    """How often a Head Worker is asked again quickly that could not be reached or was not ready."""
    connect_backoff_seconds: float = 0.5
    """After so long; others are asked at once."""
    hold_seconds: float = 60.0
    """How long an answer that is in trouble waits for Layers that are about to be served."""
    ack_after_seconds: float = 1.0
    """A client that streams gets its headers after so long: errors have their own status before."""
    keep_alive_seconds: float = 10.0
    """It is left without a sign for no longer than this."""


@dataclass(slots=True)
class HeadTries:
    """The Head Workers that have failed one answer lately."""

    policy: ProxyPolicy
    _troubled_at: float | None = None
    _faults: dict[WorkerId, list[float]] = field(default_factory=dict)
    _refused: dict[WorkerId, float] = field(default_factory=dict)
    _routes: dict[WorkerId, int] = field(default_factory=dict)
    _tried: set[WorkerId] = field(default_factory=set)
    _felled: set[WorkerId] = field(default_factory=set)

    def grew(self) -> None:
        """Take up that the answer has grown: it has all its patience again."""
        if self._troubled_at is not None:
            self._troubled_at = None
            self._routes.clear()
            self._tried.clear()
            self._felled.clear()

    def in_trouble(self, now: float) -> None:
        """Take up that the answer stands still; its time runs from the first such moment."""
        if self._troubled_at is None:
            self._troubled_at = now

    def seconds_left(self, now: float) -> float:
        """For how long it still waits for Layers; 0 is no longer."""
        began = now if self._troubled_at is None else self._troubled_at
        return max(0.0, began + self.policy.hold_seconds - now)

    def failed(self, head: WorkerId, now: float) -> None:
        """Take up a fault that may be over in a moment."""
        self.in_trouble(now)
        self._tried.add(head)
        self._faults.setdefault(head, []).append(now)

    def route_failed(self, head: WorkerId, now: float) -> None:
        """Take up that a Head Worker could not mend its Route."""
        self.failed(head, now)
        self._routes[head] = self._routes.get(head, 0) + 1

    def felled(self, head: WorkerId) -> None:
        """Take up that a Worker was lost, or its engine was, while it worked on this answer."""
        self._felled.add(head)

    @property
    def is_blamed(self) -> bool:
        """Whether it is rather the request that ends whoever works on it."""
        return len(self._felled) >= MOST_FELLED

    def layers_are_missing(self) -> None:
        """Take up what has failed the Routes: who is asked again was not at fault."""
        self._routes.clear()

    def refused(self, head: WorkerId, now: float) -> None:
        """Take up an answer that would be the same in a moment."""
        self.in_trouble(now)
        self._refused[head] = now

    def hopeless(self, now: float) -> frozenset[WorkerId]:
        """Those that are not asked again for a good while."""
        self._forget(now - MEMORY_SECONDS)
        given_up = (head for head, times in self._routes.items() if times >= MOST_FAILED_ROUTES)
        return frozenset((*self._refused, *given_up))

    def avoid(self, now: float) -> tuple[frozenset[WorkerId], ...]:
        """Whom not to ask if there are others: all that failed, else only those at rest.

        When it is too late to wait, nobody is asked again.
        """
        hopeless = self.hopeless(now)
        all_that_failed = hopeless.union(self._faults, self._routes)
        if not self.seconds_left(now):
            return (all_that_failed | self._tried,)
        return tuple(dict.fromkeys((all_that_failed, hopeless | self._resting(now))))

    def rest_seconds(self, now: float) -> float | None:
        """How long until one that is worth it may be asked again; None if there is none."""
        resting = self._resting(now) - self.hopeless(now)
        return min((self._rests_until(head) - now for head in resting), default=None)

    def _resting(self, now: float) -> frozenset[WorkerId]:
        return frozenset(head for head in self._faults if now < self._rests_until(head))

    def _rests_until(self, head: WorkerId) -> float:
        times = self._faults[head]
        is_spent = len(times) > self.policy.connect_retries
        back_off = self.policy.connect_backoff_seconds
        return times[-1] + (max(back_off, SPENT_REST_SECONDS) if is_spent else back_off)

    def _forget(self, before: float) -> None:
        self._faults = {
            head: recent
            for head, times in self._faults.items()
            if (recent := [time for time in times if time > before])
        }
        self._refused = {head: at for head, at in self._refused.items() if at > before}
