"""Whether somebody who has requests of ours still lives, by looks that go unanswered; pure.

One that is frozen still takes connections, so only silence tells: requests that have heard nothing
since the first of some unanswered looks may leave. One that answers requests meanwhile is deaf to
looks and not dead: it does one thing at a time.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LOOKS = 2
"""So many in a row must go unanswered: one may have hit a busy moment."""
APART_SECONDS = 1.0
"""Those that fail at once, one after the other, are one."""

Hearing = Callable[[float], None]
"""Hears since when there was silence, each time that a look confirms it."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look, and whose requests were there when it began."""

    began: float
    present: frozenset[Hearing]


class Pulse:
    """That of one upstream; times are those of one clock."""

    def __init__(self) -> None:
        self._present: set[Hearing] = set()
        self._missed: deque[float] = deque(maxlen=LOOKS)
        self._missed_at = float("-inf")
        self._is_deaf = False

    @property
    def silent_since(self) -> float | None:
        """When the first of the latest looks began, if all of them went unanswered."""
        is_silent = len(self._missed) == LOOKS and not self._is_deaf
        return self._missed[0] if is_silent else None

    @property
    def is_silent(self) -> bool:
        return self.silent_since is not None

    @property
    def in_question(self) -> bool:
        """Whether the latest look went unanswered; one more tells."""
        return bool(self._missed)

    @property
    def is_heeded(self) -> bool:
        """Whether a look at it means something to anybody."""
        return bool(self._present or self._missed)

    @contextmanager
    def heeded(self, hearing: Hearing) -> Iterator[None]:
        """Let a request hear of it inside the block."""
        self._present.add(hearing)
        try:
            yield
        finally:
            self._present.discard(hearing)

    def look(self, now: float) -> Look:
        return Look(now, frozenset(self._present))

    def missed(self, look: Look, now: float) -> None:
        """Note that a look went unanswered; two at about the same time are one."""
        is_apart = not self._missed or look.began >= self._missed[-1] + APART_SECONDS
        if look.began < self._missed_at or not is_apart:
            return
        self._missed.append(look.began)
        self._missed_at = now
        if (since := self.silent_since) is not None:
            for hearing in tuple(self._present):
                hearing(since)

    def answered(self, look: Look) -> None:
        """Note that a look was answered."""
        self._missed.clear()
        if look.present & self._present:
            # It heard us while it was at work.
            self._is_deaf = False

    def gave_an_answer(self) -> None:
        """Note that an answer to a request has begun."""
        self._is_deaf = self._is_deaf or bool(self._missed)
