"""Whose frame leaves next where several Sessions share a link: each in turn; pure.

The frames of one Session never overtake each other, also where one frame has several Sessions.
"""

from collections.abc import Iterable

from meshnet_worker.transport.underway import Parts

MOST_REMEMBERED = 4096
"""A Session that had its last turn so many turns ago counts as one that had none."""


class Turns:
    """When each Session had its last turn."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._turn = 0

    def next(self, waiting: Iterable[Parts]) -> int:
        """Choose one of the frames that wait, given in their order, and note its turn."""
        best, best_turn, best_ids = 0, self._turn + 1, frozenset[str]()
        seen: set[str] = set()
        for place, parts in enumerate(waiting):
            ids = frozenset(part.session_id for part in parts)
            if seen.isdisjoint(ids):
                last = max((self._last.get(one, 0) for one in ids), default=0)
                if last < best_turn:
                    best, best_turn, best_ids = place, last, ids
            seen |= ids
        self._note(best_ids)
        return best

    def _note(self, ids: frozenset[str]) -> None:
        self._turn += 1
        for one in ids:
            # Anew at the end: the first of the dict is who had no turn for longest.
            self._last.pop(one, None)
            self._last[one] = self._turn
        while len(self._last) > MOST_REMEMBERED:
            del self._last[next(iter(self._last))]
