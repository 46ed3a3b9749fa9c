"""A Tracker's turn to plan: taken when no other has it, kept alive, and handed over at the end.

A Tracker that cannot renew its turn stops planning when it has run out. What it decided before and
still wants to write is refused by the database, once another Tracker has taken over.
"""

import asyncio
import secrets
from contextlib import suppress

import structlog

from meshnet_common.edge.clock import Clock
from meshnet_tracker.bells import Bell
from meshnet_tracker.records import Term
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.store import Store

RENEW_SECONDS = 2.0
HANDING_OVER_SECONDS = 2.0

_logger = structlog.get_logger()


class PlanningTurn:
    """Asks for the turn to plan, again and again; `term` is there while it is this Tracker's."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._holder = secrets.token_hex(8)
        self._term: Term | None = None
        self._failing_since = 0.0
        self._sooner = Bell()
        self.can_write = True
        """Whether the database took the last word of this Tracker; a full disk takes none."""

    @property
    def term(self) -> Term | None:
        """The term under which this Tracker plans now; None if it is not its turn."""
        if self._term is None or self._clock.now() >= self._term.expires_at:
            return None
        return self._term

    def ask_soon(self) -> None:
        """Ask for the turn now: another Tracker may have handed it over."""
        self._sooner.ring()

    def note_pass(self, *, succeeded: bool) -> None:
        """Hear how a planning pass ended; the next renewal tells the Mesh since when they fail."""
        if succeeded:
            self._failing_since = 0.0
        elif not self._failing_since:
            self._failing_since = self._clock.now()

    async def renew(self) -> bool:
        """Ask for the turn or keep it; answers whether it has just become this Tracker's.

        Raises DatabaseUnavailableError.
        """
        before = self._term
        self._term = await self._store.leadership.take(
            self._holder, failing_since=self._failing_since
        )
        if self._term is None:
            # How the passes of the Tracker end that plans now, it tells itself.
            self._failing_since = 0.0
        return self._term is not None and (before is None or before.number != self._term.number)

    async def run(self, taken: Bell) -> None:
        """Ask until it is cancelled; ring when this Tracker begins to plan."""
        while True:
            try:
                if await self.renew():
                    _logger.info("this tracker plans", term=self._term and self._term.number)
                    taken.ring()
                self.can_write = True
            except DatabaseUnavailableError as error:
                self.can_write = False
                _logger.warning("could not ask for the turn to plan", reason=str(error))
            await self._sooner.wait(RENEW_SECONDS)

    async def hand_over(self) -> None:
        """Let another Tracker plan at once, if it was this one's turn."""
        term, self._term = self._term, None
        if term is None:
            return
        with suppress(DatabaseUnavailableError, TimeoutError):
            async with asyncio.timeout(HANDING_OVER_SECONDS):
                await self._store.leadership.hand_over(term)
