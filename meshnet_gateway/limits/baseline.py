"""How quick an Endpoint is at its limit, learnt from windows of live traffic; pure.

The median of the latest windows, not a low percentile: limits rest where the Endpoint is quick, so
most windows are, and the least of noisy ones would make all others look slow (ADR 33).
"""

from collections import deque
from statistics import median

WINDOWS = 20
MOST_RISE = 0.01
"""In one window it rises by at most this share; it falls at once."""


class Baseline:
    """The usual seconds for each token of one class of lengths."""

    def __init__(self, first_seconds: float) -> None:
        self._windows = deque((first_seconds,), maxlen=WINDOWS)
        self._seconds = first_seconds

    @property
    def seconds(self) -> float:
        return self._seconds

    def add(self, median_seconds: float) -> None:
        """Take in the median of a window."""
        self._windows.append(median_seconds)
        self._seconds = min(median(self._windows), self._seconds * (1 + MOST_RISE))
