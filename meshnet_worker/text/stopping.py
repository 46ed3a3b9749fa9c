"""Finds stop strings in text that arrives in pieces; a stop string itself is never passed on.

What is held back is only what may still become a stop string. The first stop string to be complete
ends the text, the longest one if several end at the same character, so the result depends on the
text alone and never on how it was cut into pieces.
"""

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until one of the stop strings, none of which may be empty."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._searches = tuple(_Search(stop) for stop in stops)
        self._held = ""
        self.stopped = False
        """Whether a stop string was found; nothing is passed on after it."""

    def push(self, text: str) -> str:
        """Take the next piece; return what can be part of no stop string, perhaps nothing."""
        if self.stopped:
            return ""
        if not self._searches:
            return text
        self._held += text
        for place, character in enumerate(text, len(self._held) - len(text) + 1):
            found = self._longest_ending_with(character)
            if found:
                self.stopped = True
                return self._take(place - found)
        undecided = max(search.matched for search in self._searches)
        return self._take(len(self._held) - undecided)

    def finish(self) -> str:
        """Return the held-back tail: the text is over, so it became no stop string."""
        return "" if self.stopped else self._take(len(self._held))

    def _longest_ending_with(self, character: str) -> int:
        return max(search.advance(character) for search in self._searches)

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken


class _Search:
    """Knuth, Morris and Pratt: how much of one stop string the text so far ends with."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._borders = _borders(stop)
        self.matched = 0

    def advance(self, character: str) -> int:
        """Take one character; return the stop string's length if it is complete, else 0."""
        self.matched = _extend(self._stop, self._borders, self.matched, character)
        return self.matched if self.matched == len(self._stop) else 0


def _borders(stop: str) -> list[int]:
    # borders[n]: the longest proper prefix of stop[:n] that is also its suffix.
    borders = [0, 0]
    for character in stop[1:]:
        borders.append(_extend(stop, borders, borders[-1], character))
    return borders


def _extend(stop: str, borders: Sequence[int], matched: int, character: str) -> int:
    while matched and stop[matched] != character:
        matched = borders[matched]
    return matched + 1 if stop[matched] == character else 0
