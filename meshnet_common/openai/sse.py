"""The one writer of server-sent events, and the reader that only looks for event boundaries.

Written is only what every official client survives: `data:` events, and comments that end with
ONE newline, since a comment with a blank line behind it breaks older clients. There is never an
`id:`, `retry:`, a named event or an empty `data:`.
"""

from collections.abc import Iterable, Mapping

from meshnet_common.errors import ProtocolError

SSE_HEADERS: Mapping[str, str] = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

DONE_EVENT = b"data: [DONE]\n\n"
KEEP_ALIVE_COMMENT = b": keep-alive\n"

MAX_HELD_BYTES = 1 << 20


class EventTooLongError(ProtocolError):
    """One event of a stream is too long."""


def data_event(payload: bytes) -> bytes:
    """Write one event; the payload is JSON on one line."""
    return b"data: " + payload + b"\n\n"


def comment(text: str) -> bytes:
    """Write a comment line, which clients skip; line ends in the text become spaces."""
    return b": " + " ".join(text.split()).encode() + b"\n"


def accepted_comment(ahead: int) -> bytes:
    """Tell a client that waits that its request was taken, behind so many others."""
    return comment(f"accepted; {_position(ahead)}")


def position_comment(ahead: int) -> bytes:
    """Tell a client that waits how many others are before it now."""
    return comment(_position(ahead))


def _position(ahead: int) -> str:
    return f"queued position {ahead}"


def noted_event(notes: Iterable[str], *payloads: bytes) -> bytes:
    """Write notes and the data that they explain as one block, for a reader that knows notes.

    Each payload is an event of its own for the client. Without any an empty line closes the block:
    only public streams must not have that.
    """
    lines = (*(comment(note) for note in notes), *(b"data: " + one + b"\n" for one in payloads))
    return b"".join(lines) + b"\n"


class EventBoundaries:
    """Passes an event stream through and holds back the tail that is not yet a whole event.

    Bytes are never changed. A whole comment line between two events counts as an event, so
    heartbeats are passed on at once. At any time an error event may follow what was passed.
    """

    def __init__(self) -> None:
        self._held = b""
        self._searched = 0
        self._event_open = False
        self._open_data: bytes | None = None
        self.events = 0
        """How many `data:` events were passed on; before the first a retry is invisible."""
        self.last_data = b""
        """The last line of data that was passed on; how a stream ended is seen from it."""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes in any chunking; return what may be passed on, perhaps nothing.

        Raises EventTooLongError.
        """
        self._held += data
        cut = self._last_boundary()
        ready, self._held = self._held[:cut], self._held[cut:]
        self._searched -= cut
        if len(self._held) > MAX_HELD_BYTES:
            raise EventTooLongError(f"The limit is {MAX_HELD_BYTES} bytes.")
        return ready

    def _last_boundary(self) -> int:
        boundary = 0
        while (newline := self._held.find(b"\n", self._searched)) >= 0:
            line = self._held[self._searched : newline].rstrip(b"\r")
            self._searched = newline + 1
            if self._closes_event(line):
                boundary = self._searched
        return boundary

    def _closes_event(self, line: bytes) -> bool:
        if line.startswith(b":"):
            return not self._event_open
        if line:
            self._event_open = True
            if line.startswith(b"data:"):
                self._open_data = line[len(b"data:") :].strip()
            return False
        if self._open_data is not None:
            self.events += 1
            self.last_data, self._open_data = self._open_data, None
        self._event_open = False
        return True
