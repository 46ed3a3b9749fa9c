"""Requests that wait for their turn: first in, first out for each model and priority; pure.

A lower priority number goes first. Numbers are given in the order of joining, over all models, so
each line is sorted by them.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request waits."""

    model: str
    priority: int
    number: int


class WaitingLines:
    """All who wait in this Gateway."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._lines: dict[str, dict[int, list[int]]] = {}

    def join(self, model: str, priority: int) -> Place:
        """Go to the end of a line."""
        place = Place(model, priority, next(self._numbers))
        self._lines.setdefault(model, {}).setdefault(priority, []).append(place.number)
        return place

    def leave(self, place: Place) -> None:
        """Give up a place, because its turn came or its client left; once is as good as twice."""
        line = self._line(place)
        index = bisect_left(line, place.number)
        if index == len(line) or line[index] != place.number:
            return
        del line[index]
        if not line:
            del self._lines[place.model][place.priority]
        if not self._lines[place.model]:
            del self._lines[place.model]

    def ahead(self, place: Place) -> int:
        """Count the requests for the same model that go before this one."""
        lines = self._lines.get(place.model, {})
        earlier = sum(len(line) for priority, line in lines.items() if priority < place.priority)
        return earlier + bisect_left(self._line(place), place.number)

    def next_to_go(self, may_go: Callable[[str], bool]) -> Place | None:
        """Find whose turn it is: the best of the models' firsts whose model may go now.

        A model that may not go holds up nobody but its own line.
        """
        firsts = sorted(map(self._first, self._lines), key=lambda it: (it.priority, it.number))
        return next((place for place in firsts if may_go(place.model)), None)

    def waiting(self, model: str) -> int:
        return sum(map(len, self._lines.get(model, {}).values()))

    @property
    def total(self) -> int:
        return sum(map(self.waiting, self._lines))

    def _first(self, model: str) -> Place:
        priority = min(self._lines[model])
        return Place(model, priority, self._lines[model][priority][0])

    def _line(self, place: Place) -> list[int]:
        return self._lines.get(place.model, {}).get(place.priority, [])
