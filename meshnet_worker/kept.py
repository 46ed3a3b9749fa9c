"""What this Hop has sent down its Routes and could send again, in bounded host memory; pure.

Replays refill a replaced Hop without running the Hops before it once more. Losing what is kept
costs only speed: token ids can always replace it. So the largest goes first when memory is short.
"""

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Sent:
    """One Session's rows from position 0 on, in the pieces in which they left."""

    starts: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    end: int = 0
    size: int = 0

    def truncate(self, position: int) -> None:
        """Forget what starts at `position` or later, and a piece that reaches beyond it."""
        while self.starts and self.end > position:
            self.end = self.starts.pop()
            self.size -= len(self.pieces.pop())


class KeptActivations:
    """Rows of hidden states by engine Session; `limit_bytes` bounds all of them together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._sent: dict[int, _Sent] = {}
        self._size = 0

    @property
    def size_bytes(self) -> int:
        return self._size

    def until(self, session: int) -> int:
        """Up to which position, from 0, everything is kept."""
        sent = self._sent.get(session)
        return sent.end if sent else 0

    def add(self, session: int, start: int, tokens: int, rows: bytes) -> None:
        """Keep rows that were sent, in place of any that were kept from `start` on."""
        if start > self.until(session):
            # Something before was forgotten: without it this is of no use.
            return
        sent = self._sent.setdefault(session, _Sent())
        before = sent.size
        sent.truncate(start)
        if sent.end == start:
            sent.starts.append(start)
            sent.pieces.append(rows)
            sent.end, sent.size = start + tokens, sent.size + len(rows)
        self._size += sent.size - before
        while self._size > self._limit_bytes:
            self.forget(max(self._sent, key=lambda one: self._sent[one].size))

    def rows(self, session: int, start: int, tokens: int) -> bytes | None:
        """The rows of [start, start + tokens), or None if they are not all kept."""
        sent, end = self._sent.get(session), start + tokens
        if sent is None or end > sent.end or start < 0 or tokens < 1:
            return None
        row_bytes = sent.size // sent.end
        first = bisect_right(sent.starts, start) - 1
        last = bisect_right(sent.starts, end - 1)
        offset = (start - sent.starts[first]) * row_bytes
        return b"".join(sent.pieces[first:last])[offset : offset + tokens * row_bytes]

    def forget(self, session: int) -> None:
        sent = self._sent.pop(session, None)
        if sent is not None:
            self._size -= sent.size
