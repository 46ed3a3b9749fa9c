"""Whom an answer's Head Worker may be next, and for how long somebody is looked for; pure.

Counted is from the answer's last progress on: an answer that has lost its second Head Worker an
hour after the first has all its patience again.
"""

from dataclasses import dataclass, field

from meshnet_common.ids import WorkerId


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
    """The Head Workers that have failed one answer since it last made progress."""

    policy: ProxyPolicy
    began: float
    _faults: dict[WorkerId, int] = field(default_factory=dict)
    _rests_until: dict[WorkerId, float] = field(default_factory=dict)
    _refused: set[WorkerId] = field(default_factory=set)

    @property
    def gives_up_at(self) -> float:
        return self.began + self.policy.hold_seconds

    @property
    def hopeless(self) -> frozenset[WorkerId]:
        """Those that are not asked again."""
        spent = (head for head, count in self._faults.items() if count > self._most_faults)
        return frozenset((*self._refused, *spent))

    def progressed(self, now: float) -> None:
        """Begin anew: the answer has grown."""
        self.began = now
        if self._faults or self._refused:
            self._faults.clear()
            self._rests_until.clear()
            self._refused.clear()

    def failed(self, head: WorkerId, now: float) -> None:
        """Take up a fault that may be over in a moment."""
        self._faults[head] = self._faults.get(head, 0) + 1
        self._rests_until[head] = now + self.policy.connect_backoff_seconds

    def refused(self, head: WorkerId) -> None:
        """Take up an answer that would be the same in a moment."""
        self._refused.add(head)

    def avoid(self, now: float) -> frozenset[WorkerId]:
        """Whom not to ask now."""
        return self.hopeless | self._resting(now)

    def rest_seconds(self, now: float) -> float | None:
        """How long until one that is worth it may be asked again; None if there is none."""
        waits = [self._rests_until[head] - now for head in self._resting(now) - self.hopeless]
        return min(waits, default=None)

    @property
    def _most_faults(self) -> int:
        return self.policy.connect_retries

    def _resting(self, now: float) -> frozenset[WorkerId]:
        return frozenset(head for head, end in self._rests_until.items() if now < end)
