"""Which of an embedder's two Endpoints answers: its own, or the fallback while that fails; pure.

The breaker of the primary decides, so the return is automatic: its probes are live requests, and
a probe that fails goes to the fallback like any other. There is one fallback and none behind it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from meshnet_gateway.limits.breaker import (
    Attempt,
    BreakerPolicy,
    BreakerState,
    CircuitBreaker,
    Closed,
)

PRIMARY_POLICY = BreakerPolicy(failures_in_a_row=1)
"""The first overload, connection fault or time-out is enough."""


class Side(StrEnum):
    """Who answers."""

    PRIMARY = "primary"
    FALLBACK = "fallback"


class Turn(StrEnum):
    """What a result changed."""

    NONE = "none"
    FAILED_OVER = "failed_over"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes; its result is told with it."""

    side: Side
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class FailoverFacts:
    """What there is to show of an embedder."""

    active: Side
    breaker: BreakerState
    failover_count: int
    recovery_count: int
    dimensions: int | None


class EmbedderFailover:
    """Primary and fallback of one embedder; `dimensions` None: the first answer says them."""

    def __init__(self, dimensions: int | None, draw: Callable[[], float]) -> None:
        self._breaker = CircuitBreaker(PRIMARY_POLICY, draw)
        self._dimensions = dimensions
        self._active = Side.PRIMARY
        self._failovers = 0
        self._recoveries = 0

    @property
    def facts(self) -> FailoverFacts:
        return FailoverFacts(
            self._active,
            self._breaker.state,
            self._failovers,
            self._recoveries,
            self._dimensions,
        )

    def choose(self, now: float) -> Choice:
        """Say where the next request goes; the primary's probe is one of them."""
        if self._breaker.admits(now):
            return Choice(Side.PRIMARY, self._breaker.begin(now))
        return Choice(Side.FALLBACK, Attempt(0))

    def fits(self, dimensions: int) -> bool:
        """Tell whether an answer has as many dimensions as all others; one that has not failed.

        The first answer settles it where the configuration does not.
        """
        if self._dimensions is None:
            self._dimensions = dimensions
        return dimensions == self._dimensions

    def succeeded(self, choice: Choice, now: float) -> Turn:
        if choice.side is Side.PRIMARY:
            self._breaker.succeeded(choice.attempt, now)
        return self._look_again()

    def failed(self, choice: Choice, now: float) -> Turn:
        """Note a failure; one of the primary may go to the fallback now."""
        if choice.side is Side.PRIMARY:
            self._breaker.failed(choice.attempt, now)
        return self._look_again()

    def cancelled(self, choice: Choice) -> None:
        if choice.side is Side.PRIMARY:
            self._breaker.cancelled(choice.attempt)

    def _look_again(self) -> Turn:
        active = Side.PRIMARY if isinstance(self._breaker.state, Closed) else Side.FALLBACK
        if active is self._active:
            return Turn.NONE
        self._active = active
        if active is Side.FALLBACK:
            self._failovers += 1
            return Turn.FAILED_OVER
        self._recoveries += 1
        return Turn.RECOVERED
