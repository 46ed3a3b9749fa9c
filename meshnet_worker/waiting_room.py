"""Sessions of a Head Worker that wait for KV, and whose turn it is; pure, `now` in seconds.

Each Variant has a line of its own, in the order of admission: only its first tries again, after a
back-off with jitter or as soon as KV is freed here. A line that moves is nobody's deadlock: none
of those who wait hold any KV.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from meshnet_common.protocol.tickets import RouteTicket

FIRST_BACK_OFF_SECONDS = 0.1
LEAST_BACK_OFF_SECONDS = 0.05
"""However much is freed, nobody tries more often: each try asks the Tracker and every Hop."""
MOST_DOUBLINGS = 4
"""No back-off is longer than the first one doubled this often."""


@dataclass(frozen=True, slots=True)
class Go:
    """Its turn has come."""


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Not before this moment, unless the room changes."""

    moment: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It has waited as long as it may."""

    waited_seconds: float


Turn = Go | WaitUntil | GiveUp


@dataclass(slots=True)
class _Waiter:
    ticket: RouteTicket
    since: float
    not_before: float
    earliest: float
    refusals: int = 0

    @property
    def line(self) -> tuple[str, str]:
        return _line(self.ticket)


class WaitingRoom:
    """Who waits; a Session that is not in here may go at once."""

    def __init__(self, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        self._waiters: dict[str, _Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def arrive(self, ticket: RouteTicket, now: float) -> None:
        """A new Session: it waits behind others of its line, and is free to go without any."""
        if any(waiter.line == _line(ticket) for waiter in self._waiters.values()):
            self._waiters[ticket.session_id] = _Waiter(ticket, now, now, now)

    def refused(self, ticket: RouteTicket, now: float) -> None:
        """A Session that got no KV, or lost it: it waits, longer each time."""
        waiter = self._waiters.setdefault(ticket.session_id, _Waiter(ticket, now, now, now))
        waiter.refusals += 1
        waiter.earliest = now + LEAST_BACK_OFF_SECONDS
        waiter.not_before = now + _back_off(ticket.session_id, waiter.refusals)

    def leave(self, session_id: str) -> None:
        """A Session got its KV, or nobody waits for its answer any more."""
        self._waiters.pop(session_id, None)

    def be_patient(self, session_id: str, now: float) -> None:
        """A Session that waits for nobody but its own answer has all its time again."""
        self._waiters[session_id].since = now

    def ahead(self, session_id: str) -> int:
        """How many others are before a Session that waits; 0 for one that does not."""
        waiter = self._waiters.get(session_id)
        if waiter is None:
            return 0
        return sum(other.ticket.order < waiter.ticket.order for other in self._line_of(waiter))

    def freed(self, now: float) -> None:
        """KV was freed on this Worker: nobody needs to wait for the end of a back-off."""
        for waiter in self._waiters.values():
            waiter.not_before = min(waiter.not_before, max(now, waiter.earliest))

    def turn(self, session_id: str, now: float) -> Turn:
        """Whether a Session may try now."""
        waiter = self._waiters.get(session_id)
        if waiter is None:
            return Go()
        deadline = waiter.since + self._deadline_seconds
        if now >= deadline:
            return GiveUp(now - waiter.since)
        if any(other.ticket.order < waiter.ticket.order for other in self._line_of(waiter)):
            return WaitUntil(deadline)
        return Go() if now >= waiter.not_before else WaitUntil(min(waiter.not_before, deadline))

    def _line_of(self, waiter: _Waiter) -> Iterator[_Waiter]:
        return (other for other in self._waiters.values() if other.line == waiter.line)


def _line(ticket: RouteTicket) -> tuple[str, str]:
    return ticket.model, ticket.quantization


def _back_off(session_id: str, refusals: int) -> float:
    """Seconds to wait after so many refusals: doubling, and spread over half to all of that."""
    doublings = min(refusals - 1, MOST_DOUBLINGS)
    longest = FIRST_BACK_OFF_SECONDS * (1 << doublings)
    # A draw that needs no random source: the same for a Session and a refusal, else different.
    share = crc32(f"{session_id} {refusals}".encode()) / 0xFFFFFFFF
    return longest * (0.5 + share / 2)
