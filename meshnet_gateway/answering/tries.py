"""Where one request has been, and where it may go next; pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tries:
    """The attempts of one request; what is tried goes by its base URL, times are seconds."""

    retries: int
    backoff_seconds: float
    _faults: Counter[str] = field(default_factory=Counter)
    _rests_until: dict[str, float] = field(default_factory=dict)
    _barred: set[str] = field(default_factory=set)
    _left: set[str] = field(default_factory=set)

    @property
    def any_failed(self) -> bool:
        return bool(self._faults or self._barred)

    def failed(self, url: str, now: float) -> None:
        """Note a fault that may be over soon: it may be tried again after a rest."""
        self._faults[url] += 1
        self._rests_until[url] = now + self.backoff_seconds

    def has_failed(self, url: str) -> bool:
        return self._faults[url] > 0

    def leave(self, url: str) -> None:
        """Note that it went away from one that has fallen silent."""
        self._left.add(url)

    def bar(self, url: str) -> None:
        """Never go there again with this request."""
        self._barred.add(url)

    def barred(self, now: float) -> frozenset[str]:
        """Say where it must not go now."""
        resting = (url for url, until in self._rests_until.items() if until > now)
        return frozenset(self._barred.union(resting))

    @property
    def barred_for_good(self) -> frozenset[str]:
        """Where it must never go again."""
        return frozenset(self._barred)

    @property
    def given_up(self) -> frozenset[str]:
        """For whom it leaves nobody: those that do one thing at a time are silent by turns."""
        return frozenset(self._barred | self._left)

    def is_lost(self, urls: Iterable[str]) -> bool:
        """Tell whether it will never go to any of them."""
        return self._barred.issuperset(urls)

    def is_spent(self, urls: Iterable[str]) -> bool:
        """Tell whether it has tried all of them as often as it should before it goes elsewhere."""
        return all(url in self._barred or self._faults[url] > self.retries for url in urls)

    def rest_seconds(self, urls: Iterable[str], now: float) -> float:
        """Say for how long there is nowhere to go among these."""
        rests = [
            max(0.0, self._rests_until.get(url, now) - now)
            for url in urls
            if url not in self._barred
        ]
        return min(rests, default=self.backoff_seconds)
