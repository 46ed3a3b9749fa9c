"""How many requests an Endpoint takes at once without slowing down, found from their pace; pure.

In each window the pace of the answers is compared with a baseline. While it is as quick the limit
rises, when it is slower the limit falls, and when the Endpoint says that it has too much it falls
at once. It never leaves the range from the floor to the ceiling.
"""

from dataclasses import dataclass, field
from statistics import median

from meshnet_gateway.limits.baseline import Baseline
from meshnet_gateway.limits.pace import LengthClass, Pace

WINDOW_SECONDS = 1.0
LEAST_SAMPLES = 10
TOLERANCE = 1.5
LEAST_FACTOR = 0.9
OVERLOAD_FACTOR = 0.75


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """What there is to show of a limit."""

    limit: int
    floor: int
    ceiling: int
    gradient: float
    """Of the last window: below 1 the Endpoint was slower than it can be."""
    windows: int
    overloads: int


@dataclass(slots=True)
class _Window:
    start: float
    peak_in_flight: int = 0
    seconds: dict[LengthClass, list[float]] = field(default_factory=dict)
    answers: int = 0
    overloaded: bool = False


class AdaptiveLimit:
    """The limit of one Endpoint for one model."""

    def __init__(self, floor: int, ceiling: int) -> None:
        self._floor = floor
        self._ceiling = max(floor, ceiling)
        self._limit = float(floor)
        self._baselines: dict[LengthClass, Baseline] = {}
        self._window: _Window | None = None
        self._frozen = False
        self._gradient = 1.0
        self._windows = 0
        self._overloads = 0

    @property
    def limit(self) -> int:
        return int(self._limit)

    @property
    def facts(self) -> LimitFacts:
        return LimitFacts(
            self.limit,
            self._floor,
            self._ceiling,
            self._gradient,
            self._windows,
            self._overloads,
        )

    def set_range(self, floor: int, ceiling: int) -> None:
        """Change floor and ceiling, keeping what was learnt."""
        self._floor, self._ceiling = floor, max(floor, ceiling)
        self._set(self._limit)

    def observe(self, pace: Pace, in_flight: int, now: float) -> None:
        """Take in a finished answer; `in_flight` counts the Endpoint's requests, this one too.

        Health checks, held requests, cancelled ones and retries are not to be observed.
        """
        window = self._window_at(now)
        window.peak_in_flight = max(window.peak_in_flight, in_flight)
        window.answers += 1
        for sample in pace.samples():
            window.seconds.setdefault(sample.length, []).append(sample.seconds)
        if now - window.start >= WINDOW_SECONDS and window.answers >= LEAST_SAMPLES:
            self._close(window)

    def overloaded(self, now: float) -> None:
        """Note a hard signal: 429, 503, a time-out, a reset, or requests that wait over there."""
        window = self._window_at(now)
        if window.overloaded:
            return
        window.overloaded = True
        self._overloads += 1
        self._frozen = True
        self._set(self._limit * OVERLOAD_FACTOR)

    def _window_at(self, now: float) -> _Window:
        if self._window is None:
            self._window = _Window(now)
        return self._window

    def _close(self, window: _Window) -> None:
        self._window = None
        self._windows += 1
        self._gradient = self._learn(window)
        if window.overloaded:
            return
        if self._frozen:
            self._frozen = False
        elif self._gradient < 1.0:
            self._set(self._limit * max(self._gradient, LEAST_FACTOR))
        elif 2 * window.peak_in_flight >= self._limit:
            self._set(self._limit + 1)

    def _learn(self, window: _Window) -> float:
        ratios: list[float] = []
        for length, seconds in window.seconds.items():
            baseline = self._baselines.setdefault(length, Baseline())
            baseline.add(median(seconds))
            if baseline.seconds is not None:
                ratios += [TOLERANCE * baseline.seconds / one for one in seconds]
        return min(1.0, max(0.5, median(ratios))) if ratios else 1.0

    def _set(self, limit: float) -> None:
        self._limit = min(max(limit, self._floor), self._ceiling)
