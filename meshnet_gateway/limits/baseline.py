"""How quick an Endpoint is while it has little to do, learnt from windows of live traffic; pure."""

from collections import deque
from math import ceil

WINDOWS = 20
LOW_SHARE = 0.1
"""The baseline is the tenth percentile of the latest windows."""
MOST_RISE = 0.01
"""In one window it rises by at most this share; it falls at once."""


class Baseline:
    """The baseline of one class of answers, in seconds for each token."""

    def __init__(self) -> None:
        self._windows: deque[float] = deque(maxlen=WINDOWS)
        self._seconds: float | None = None

    @property
    def seconds(self) -> float | None:
        """None before the first window."""
        return self._seconds

    def add(self, median_seconds: float) -> None:
        """Take in the median of a window."""
        self._windows.append(median_seconds)
        low = sorted(self._windows)[ceil(LOW_SHARE * len(self._windows)) - 1]
        if self._seconds is None:
            self._seconds = low
        self._seconds = min(low, self._seconds * (1 + MOST_RISE))
