"""How many requests an Endpoint takes at once without slowing down, found from their pace; pure.

By Little's law an Endpoint that takes `slowdown` times as long as usual for what it has in flight
works on in flight / slowdown of it, and the rest waits or shares: so a single window tells where
the knee is. The limit goes just below that and rests there, so that most windows show the usual
pace, before it feels its way up again, one at a time. It never leaves floor and ceiling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from meshnet_gateway.limits.baseline import Baseline
from meshnet_gateway.limits.pace import LengthClass, Pace, Part

WINDOW_SECONDS = 1.0
LEAST_ANSWERS = 10
ANSWERS_PER_IN_FLIGHT = 2
"""A window has at least so many answers, and so many times what is in flight: the more that is,
the less one more changes, and the more answers tell that from noise."""

LEAST_STARTING_ANSWERS = 4
STARTING_FACTOR = 2
"""Until an Endpoint is slow for the first time, windows are as short as this and the limit doubles:
ten answers one after the other, only to let a second one through, may take minutes. In windows of
two, and one for each in flight, the way from 1 to 32 with answers of 15 s takes 124 s and not 212;
but chance then ends the doubling far below the knee twice as often, for half an hour."""

WAITING_SHARE = 0.1
WAITING_REQUESTS = 0.5
"""An Endpoint is slow when of what is in flight more than this share, and more than so many
requests' worth, waits."""
SURELY_SLOW = 1.1
"""Beyond the bound times this one window is believed, below it only two in a row."""
MARGIN = 0.95
"""The limit goes to this share of the estimated knee: a baseline that was learnt a little above
the knee is then learnt anew below it, and does not creep up."""
LEAST_FACTOR = 0.75
"""In one window the limit falls to no less than this share."""
OVERLOAD_FACTOR = 0.75

REST_WINDOWS_PER_LIMIT = 2
MOST_REST_WINDOWS = 10
"""After it fell the limit rests for twice as many windows as it is high, and at most for these."""


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """What there is to show of a limit."""

    limit: int
    floor: int
    ceiling: int
    gradient: float
    """Of the last window: the usual time of its answers by the time that they took."""
    windows: int
    overloads: int


@dataclass(slots=True)
class _Window:
    start: float
    most_in_flight: int = 1
    answers: list[tuple[Part, ...]] = field(default_factory=list)

    def is_over(self, now: float, least_answers: int) -> bool:
        least = max(least_answers, ANSWERS_PER_IN_FLIGHT * self.most_in_flight)
        return now - self.start >= WINDOW_SECONDS and len(self.answers) >= least


class AdaptiveLimit:
    """The limit of one Endpoint for one model."""

    def __init__(self, floor: int, ceiling: int) -> None:
        # With none in flight there would be no answer to learn from.
        self._floor = max(1, floor)
        self._ceiling = max(self._floor, ceiling)
        self._limit = self._floor
        self._baselines: dict[LengthClass, Baseline] = {}
        self._window: _Window | None = None
        self._changed_at = float("-inf")
        self._rest_windows = 0
        self._was_slow = False
        self._is_starting = True
        self._slowdown = 1.0
        self._windows = 0
        self._overloads = 0
        self._has_just_fallen = False

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def facts(self) -> LimitFacts:
        return LimitFacts(
            self._limit,
            self._floor,
            self._ceiling,
            1.0 / self._slowdown,
            self._windows,
            self._overloads,
        )

    def set_range(self, floor: int, ceiling: int) -> None:
        """Change floor and ceiling, keeping what was learnt."""
        self._floor = max(1, floor)
        self._ceiling = max(self._floor, ceiling)
        self._limit = self._clamped(self._limit)

    def observe(self, pace: Pace, in_flight: int, now: float) -> None:
        """Take in a finished answer; `in_flight` counts the Endpoint's requests, this one too.

        Health checks, held requests, cancelled ones and retries are not to be observed.
        """
        parts = pace.parts()
        # What began under another limit would tell of that one.
        if not parts or now - pace.seconds < self._changed_at:
            return
        if self._window is None:
            self._window = _Window(now)
        window = self._window
        window.most_in_flight = max(window.most_in_flight, in_flight)
        window.answers.append(parts)
        if window.is_over(now, LEAST_STARTING_ANSWERS if self._is_starting else LEAST_ANSWERS):
            self._window = None
            self._has_just_fallen = False
            self._learn(window)
            self._change(self._next_limit(window.most_in_flight), now)

    def overloaded(self, now: float) -> None:
        """Note a hard signal: 429, 503, a time-out, a reset, or requests that wait over there.

        One counts, and the others only after a window of answers that began under the lower limit:
        a burst that is refused, and an Endpoint that is gone for a while, say one thing often.
        """
        if self._has_just_fallen:
            return
        self._has_just_fallen = True
        self._is_starting = False
        self._overloads += 1
        self._rest_windows = max(self._rest_windows, 1)
        self._window = None
        self._change(int(self._limit * OVERLOAD_FACTOR), now)

    def _learn(self, window: _Window) -> None:
        self._windows += 1
        by_class: dict[LengthClass, list[float]] = {}
        for parts in window.answers:
            for part in parts:
                by_class.setdefault(part.length, []).append(part.seconds_per_token)
        for length, seconds in by_class.items():
            if length in self._baselines:
                self._baselines[length].add(median(seconds))
            else:
                self._baselines[length] = Baseline(median(seconds))
        self._slowdown = median(map(self._slowdown_of, window.answers))

    def _slowdown_of(self, parts: Sequence[Part]) -> float:
        usual = sum(part.tokens * self._baselines[part.length].seconds for part in parts)
        return sum(part.seconds for part in parts) / usual

    def _next_limit(self, in_flight: int) -> int:
        bound = 1 / (1 - max(WAITING_SHARE, WAITING_REQUESTS / in_flight))
        was_slow, self._was_slow = self._was_slow, self._slowdown > bound
        if self._was_slow:
            if not was_slow and self._slowdown < SURELY_SLOW * bound:
                return self._limit
            return self._fallen(in_flight / self._slowdown)
        if self._rest_windows > 0:
            self._rest_windows -= 1
            return self._limit
        if in_flight < self._limit:
            return self._limit
        return self._limit * STARTING_FACTOR if self._is_starting else self._limit + 1

    def _fallen(self, knee: float) -> int:
        self._was_slow = False
        wanted = min(round(MARGIN * knee), self._limit - 1)
        least_factor = 1 / STARTING_FACTOR if self._is_starting else LEAST_FACTOR
        limit = max(wanted, int(least_factor * self._limit))
        self._is_starting = False
        self._rest_windows = min(REST_WINDOWS_PER_LIMIT * limit, MOST_REST_WINDOWS)
        return limit

    def _change(self, limit: int, now: float) -> None:
        limit = self._clamped(limit)
        if limit != self._limit:
            self._limit = limit
            self._changed_at = now

    def _clamped(self, limit: int) -> int:
        return min(max(limit, self._floor), self._ceiling)
