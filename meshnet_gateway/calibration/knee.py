"""Decides which concurrency is tried next, and which one is just before the knee.

The knee is where the curve of throughput over concurrency stands highest above the straight line
from nothing to the last level, both scaled to 1. A level at which requests waited inside the
upstream, failed, or took several times as long as alone, is past it whatever the curve says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

LEAST_ELASTICITY = 0.15
"""Less than this part of what more concurrency would ideally gain, and it has ceased to pay."""
APART = 0.8
"""Levels nearer to each other than this say more of chance than of the curve."""
MOST_SLOWDOWN = 4.0
"""Times the p95 of one request alone; more, and a level is past the knee."""
CHANCE = 0.08
"""Heights above the line that differ by less than this part may differ by chance."""
FINE_SHARE = 8
"""The knee is looked for to within an eighth of itself, or to within one."""


@dataclass(frozen=True, slots=True)
class Level:
    """What one offered concurrency came to."""

    concurrency: int
    throughput: float
    """Tokens per second, or inputs per second for embeddings."""
    p50_seconds: float
    p95_seconds: float
    waiting: int | None = None
    """Most requests that waited inside the upstream at once; None if it does not tell."""
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Knee:
    """The concurrency just before the knee."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class NotReached:
    """The upstream was not saturated at the highest level that was tried."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class Unusable:
    """Not even one request at a time was answered well."""


Finding = Knee | NotReached | Unusable


def next_concurrency(levels: Sequence[Level], most: int) -> int | None:
    """Return what to try next: doubles up to saturation, then ever nearer to the knee."""
    tried = sorted(levels, key=lambda level: level.concurrency)
    if not tried:
        return 1
    if not _is_saturated(tried):
        highest = tried[-1].concurrency
        return min(2 * highest, most) if highest < most else None
    finding = find_knee(tried)
    return _between(tried, finding.concurrency) if isinstance(finding, Knee) else None


def find_knee(levels: Sequence[Level]) -> Finding:
    """Find the knee in what was measured, in any order."""
    tried = sorted(levels, key=lambda level: level.concurrency)
    good = _before_trouble(tried)
    if not good:
        return Unusable()
    if not _is_saturated(tried):
        return NotReached(tried[-1].concurrency)
    highest = tried[-1].concurrency
    most = max(level.throughput for level in good)

    above = [level.throughput / most - level.concurrency / highest for level in good]
    # Of levels that chance alone may tell apart the lowest: a budget is better too small.
    first = next(index for index, height in enumerate(above) if height >= (1 - CHANCE) * max(above))
    return Knee(good[first].concurrency)


def _is_saturated(tried: Sequence[Level]) -> bool:
    """Tell whether the highest level shows it; `tried` is in order."""
    if len(_before_trouble(tried)) < len(tried):
        return True
    last = tried[-1]
    lower = [level for level in tried if level.concurrency <= APART * last.concurrency]
    if not lower:
        return False
    gained = log(last.throughput / lower[-1].throughput)
    return gained < LEAST_ELASTICITY * log(last.concurrency / lower[-1].concurrency)


def _before_trouble(tried: Sequence[Level]) -> Sequence[Level]:
    for index, level in enumerate(tried):
        slow = level.p95_seconds > MOST_SLOWDOWN * tried[0].p95_seconds
        if slow or level.waiting or level.failures or not level.throughput:
            return tried[:index]
    return tried


def _between(tried: Sequence[Level], knee: int) -> int | None:
    """Return the middle of the wider gap beside the knee, or None if both are narrow."""
    levels = [0, *(level.concurrency for level in tried)]
    at = levels.index(knee)
    gaps = [(levels[at] - levels[at - 1], levels[at - 1])]
    if at + 1 < len(levels):
        gaps.append((levels[at + 1] - levels[at], levels[at]))
    widest, start = max(gaps)
    return start + widest // 2 if widest > max(1, knee // FINE_SHARE) else None
