"""Finds stop strings in text that arrives in pieces; a stop string itself is never passed on.

What is held back is only what may still become a stop string. The first stop string to be complete
ends the text, the longest one if several end at the same character, so the result depends on the
text alone and never on how it was cut into pieces. Where an answer has to have so many tokens, only
a stop string that is complete behind those ends it, as vLLM has it.
"""

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until one of the stop strings, none of which may be empty.

    None counts that is complete within the first `least_tokens` tokens.
    """

    def __init__(self, stops: Sequence[str] = (), least_tokens: int = 0) -> None:
        self._searches = tuple(_Search(stop) for stop in stops)
        self._held = ""
        self._may_stop = not least_tokens
        self.least_tokens = least_tokens
        """How many tokens are still to come before a stop string counts."""
        self.stopped = False
        """Whether a stop string was found; nothing is passed on after it."""

    def next_token(self) -> None:
        """Take up that what is pushed from now on comes with the next token."""
        self._may_stop = not self.least_tokens
        self.least_tokens = max(0, self.least_tokens - 1)

    def push(self, text: str) -> str:
        """Take the next piece; return what can be part of no stop string, perhaps nothing."""
        if self.stopped:
            return ""
        if not self._searches:
            return text
        self._held += text
        for place, character in enumerate(text, len(self._held) - len(text) + 1):
            found = self._longest_ending_with(character)
            if found and self._may_stop:
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
        if self.matched < len(self._stop):
            return 0
        # Where it does not count, its end may be the beginning of another one.
        self.matched = self._borders[-1]
        return len(self._stop)


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
