"""A circuit breaker: keeps requests away from an Endpoint that fails, and tries it again; pure.

Closed -> open, for a cool-down that doubles with jitter up to a cap -> half open, one probe at a
time -> closed after some successes. The caller reports as failures what speaks against the
Endpoint (connect errors, time-outs, 5xx, 429 for want of capacity, malformed bodies), as successes
its answers, also a 4xx that is the client's fault, and as cancelled what says nothing.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NewType

MOST_CALLS = 200
"""So many of the latest calls are looked at, however long the window is."""

Attempt = NewType("Attempt", int)
"""Names the period in which a request began; what began in an earlier one is not counted."""


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a breaker opens, for how long, and what closes it."""

    failures_in_a_row: int = 3
    window_seconds: float = 60.0
    least_calls: int = 5
    failed_share: float = 0.5
    """It also opens if more than this share of at least `least_calls` in the window failed."""
    cool_down_seconds: float = 5.0
    most_cool_down_seconds: float = 60.0
    jitter: float = 0.2
    """A cool-down is longer by up to this share, so that not all probes come at once."""
    successes_to_close: int = 2


@dataclass(frozen=True, slots=True)
class Closed:
    """Every request may go."""

    failures_in_a_row: int = 0


@dataclass(frozen=True, slots=True)
class Open:
    """No request may go before this moment."""

    until: float
    openings: int
    """How often it opened without having closed between."""


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """One request may go at a time."""

    openings: int
    probing: bool = False
    successes: int = 0


BreakerState = Closed | Open | HalfOpen


class CircuitBreaker:
    """The breaker of one Endpoint; `draw` gives numbers in [0, 1)."""

    def __init__(self, policy: BreakerPolicy, draw: Callable[[], float]) -> None:
        self._policy = policy
        self._draw = draw
        self._state: BreakerState = Closed()
        self._period = 0
        self._calls: deque[tuple[float, bool]] = deque(maxlen=MOST_CALLS)

    @property
    def state(self) -> BreakerState:
        return self._state

    def admits(self, now: float) -> bool:
        """Tell whether a request may go to the Endpoint."""
        match self._state:
            case Closed():
                return True
            case Open(until=until):
                return now >= until
            case HalfOpen(probing=probing):
                return not probing

    def begin(self, now: float) -> Attempt:
        """Note that a request goes there; it is the probe if the breaker is not closed."""
        if not self.admits(now):
            raise ValueError("the breaker admits nothing now")
        match self._state:
            case Open(openings=openings):
                self._enter(HalfOpen(openings, probing=True))
            case HalfOpen() as state:
                self._enter(replace(state, probing=True))
            case Closed():
                pass
        return Attempt(self._period)

    def succeeded(self, attempt: Attempt, now: float) -> None:
        if attempt != self._period:
            return
        match self._state:
            case HalfOpen(successes=successes) as state:
                if successes + 1 >= self._policy.successes_to_close:
                    self._calls.clear()
                    self._enter(Closed())
                else:
                    self._enter(replace(state, probing=False, successes=successes + 1))
            case Closed():
                self._count(now, failed=False)
                self._state = Closed()
            case Open():
                pass

    def failed(self, attempt: Attempt, now: float, others: int = 0) -> None:
        """Note a failure; `others` is how many other Endpoints would still take requests.

        With none, a rate of failures opens nothing: that would make a fault in part a whole one.
        """
        if attempt != self._period:
            return
        match self._state:
            case HalfOpen(openings=openings):
                self._open(openings + 1, now)
            case Closed(failures_in_a_row=before):
                self._count(now, failed=True)
                self._state = Closed(before + 1)
                in_a_row = before + 1 >= self._policy.failures_in_a_row
                if in_a_row or (others > 0 and self._fails_often()):
                    self._open(1, now)
            case Open():
                pass

    def cancelled(self, attempt: Attempt) -> None:
        """Note that a request ended and told nothing; another one may probe."""
        if attempt == self._period and isinstance(self._state, HalfOpen):
            self._enter(replace(self._state, probing=False))

    def _open(self, openings: int, now: float) -> None:
        policy = self._policy
        # Bounded before the power, which would overflow for an Endpoint that is gone for days.
        doublings = min(openings - 1, 30)
        cool_down = min(policy.cool_down_seconds * 2**doublings, policy.most_cool_down_seconds)
        self._enter(Open(now + cool_down * (1 + policy.jitter * self._draw()), openings))

    def _enter(self, state: BreakerState) -> None:
        self._state = state
        self._period += 1

    def _count(self, now: float, *, failed: bool) -> None:
        self._calls.append((now, failed))
        while self._calls[0][0] < now - self._policy.window_seconds:
            self._calls.popleft()

    def _fails_often(self) -> bool:
        failures = sum(failed for _, failed in self._calls)
        enough = len(self._calls) >= self._policy.least_calls
        return enough and failures > self._policy.failed_share * len(self._calls)
