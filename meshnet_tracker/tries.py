"""Whom an answer's Head Worker may be next, and for how long somebody is looked for; pure.

What failed long ago counts no more: an answer that loses its second Head Worker an hour after the
first is as patient as it was then.
"""

from dataclasses import dataclass, field

from meshnet_common.ids import WorkerId

MEMORY_SECONDS = 60.0
"""A fault counts for so long."""


@dataclass(frozen=True, slots=True)
class ProxyPolicy:
    """How patient the proxy is."""

    connect_retries: int = 8
    """How often a Head Worker is asked again that could not be reached or was not ready."""
    connect_backoff_seconds: float = 0.5
    """After so long; others are asked at once."""
    hold_seconds: float = 60.0
    """How long an answer waits for Layers that are about to be served."""


@dataclass(slots=True)
class HeadTries:
    """The Head Workers that have failed one answer lately."""

    policy: ProxyPolicy
    progress_at: float
    """When the answer last grew, or began."""
    _faults: dict[WorkerId, list[float]] = field(default_factory=dict)
    _refused: dict[WorkerId, float] = field(default_factory=dict)

    @property
    def gives_up_at(self) -> float:
        """Until when it waits for Layers; an answer that grows has all its patience again."""
        return self.progress_at + self.policy.hold_seconds

    def failed(self, head: WorkerId, now: float) -> None:
        """Take up a fault that may be over in a moment."""
        self._faults.setdefault(head, []).append(now)

    def refused(self, head: WorkerId, now: float) -> None:
        """Take up an answer that would be the same in a moment."""
        self._refused[head] = now

    def hopeless(self, now: float) -> frozenset[WorkerId]:
        """Those that are not asked again for a good while."""
        self._forget(now - MEMORY_SECONDS)
        spent = (
            head for head, times in self._faults.items() if len(times) > self.policy.connect_retries
        )
        return frozenset((*self._refused, *spent))

    def avoid(self, now: float) -> tuple[frozenset[WorkerId], ...]:
        """Whom not to ask if there are others: all that failed, else only those at rest."""
        hopeless = self.hopeless(now)
        sets = (hopeless.union(self._faults), hopeless | self._resting(now))
        return tuple(dict.fromkeys(sets))

    def rest_seconds(self, now: float) -> float | None:
        """How long until one that is worth it may be asked again; None if there is none."""
        back_off = self.policy.connect_backoff_seconds
        resting = self._resting(now) - self.hopeless(now)
        return min((self._faults[head][-1] + back_off - now for head in resting), default=None)

    def _resting(self, now: float) -> frozenset[WorkerId]:
        back_off = self.policy.connect_backoff_seconds
        return frozenset(head for head, times in self._faults.items() if now < times[-1] + back_off)

    def _forget(self, before: float) -> None:
        self._faults = {
            head: recent
            for head, times in self._faults.items()
            if (recent := [time for time in times if time > before])
        }
        self._refused = {head: at for head, at in self._refused.items() if at > before}
