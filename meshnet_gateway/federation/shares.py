"""Turns by weight: of any first N choices each one's share is within one of what is its due.

The rule is Tijdeman's for the chairman assignment problem (1980): who may be chosen already is who
is owed enough of a turn, and of those the one comes first who would be owed too much soonest.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from fractions import Fraction


class Shares:
    """Counts past choices; each set of candidates with its weights has counts of its own.

    So one that comes back after a fault gets its share from then on, and not what it missed.
    """

    def __init__(self) -> None:
        self._counts: dict[Hashable, Counter[str]] = {}

    def choose(self, weights: Mapping[str, float]) -> str:
        """Choose one of at least one candidate; weights are above 0 and finite."""
        candidates = frozenset(weights.items())
        counts = self._counts.setdefault(candidates, Counter())
        chosen = _next(weights, counts)
        counts[chosen] += 1
        return chosen


def _next(weights: Mapping[str, float], counts: Counter[str]) -> str:
    if len(weights) == 1:
        return next(iter(weights))
    # Exact, so that equal weights are equal however many choices there were.
    total = sum(map(Fraction, weights.values()))
    turn = counts.total() + 1
    shares = {name: Fraction(weight) / total for name, weight in weights.items()}
    owed = {name: turn * share - counts[name] for name, share in shares.items()}
    slack = Fraction(1, 2 * len(weights) - 2)
    ready = [name for name in sorted(weights) if owed[name] >= slack]
    return min(ready, key=lambda name: (1 - slack - owed[name]) / shares[name])
