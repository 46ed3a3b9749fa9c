"""Published limit algorithms, small and by the letter: what ours is compared with.

They see raw latency, as they were made for calls that all take about as long.
"""

from dataclasses import dataclass, field
from math import ceil, log10


@dataclass
class Aimd:
    """Loss-based: one more for each success at load, a tenth less for each drop."""

    limit: int = 20
    least: int = 20
    most: int = 200
    back_off: float = 0.9
    timeout_seconds: float = 5.0

    def sample(self, seconds: float, in_flight: int, dropped: bool) -> int:
        if dropped or seconds > self.timeout_seconds:
            self.limit = int(self.limit * self.back_off)
        elif 2 * in_flight >= self.limit:
            self.limit += 1
        self.limit = min(max(self.limit, self.least), self.most)
        return self.limit


@dataclass
class Vegas:
    """Keeps the estimated number that waits between two bounds."""

    limit: int = 20
    most: int = 1000
    alpha: int = 3
    beta: int = 6
    least_seconds: float = field(default=0.0)

    def sample(self, seconds: float, in_flight: int, dropped: bool) -> int:
        if not self.least_seconds or seconds < self.least_seconds:
            self.least_seconds = seconds
        unit = max(1, int(log10(self.limit)))
        waits = ceil(self.limit * (1 - self.least_seconds / seconds))
        if dropped:
            self.limit -= unit
        elif 2 * in_flight < self.limit:
            return self.limit
        elif waits <= unit:
            self.limit += self.beta * unit
        elif waits < self.alpha * unit:
            self.limit += unit
        elif waits > self.beta * unit:
            self.limit -= unit
        self.limit = min(max(self.limit, 1), self.most)
        return self.limit


@dataclass
class Gradient2:
    """Compares a short window's latency with a long average."""

    limit: float = 20.0
    least: int = 20
    most: int = 200
    smoothing: float = 0.2
    tolerance: float = 1.5
    may_wait: int = 4
    long_seconds: float = 0.0
    windows: int = 0

    def window(self, seconds: float, in_flight: int) -> int:
        self.windows += 1
        factor = 1 / self.windows if self.windows <= 10 else 2 / 601
        self.long_seconds += factor * (seconds - self.long_seconds)
        if self.long_seconds > 2 * seconds:
            self.long_seconds *= 0.95
        if 2 * in_flight >= self.limit:
            gradient = min(1.0, max(0.5, self.tolerance * self.long_seconds / seconds))
            wanted = self.limit * gradient + self.may_wait
            smoothed = (1 - self.smoothing) * self.limit + self.smoothing * wanted
            self.limit = min(max(smoothed, self.least), self.most)
        return int(self.limit)
