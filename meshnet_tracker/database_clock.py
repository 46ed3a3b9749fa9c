"""The Tracker's clock: the database's, which all Trackers of a Mesh share.

It is asked once a second and goes on by this machine's steady clock in between, also while the
database is away.
"""

import asyncio
from contextlib import suppress

from meshnet_common.edge.clock import Clock
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.store import Store

ASK_SECONDS = 1.0
MOST_SECONDS_IN_DOUBT = 0.5
"""An answer that took longer does not tell well enough what time it is."""


class DatabaseClock:
    """Tells seconds since the epoch, as soon as it was set once."""

    def __init__(self, store: Store, steady: Clock) -> None:
        self._store = store
        self._steady = steady
        self._ahead: float | None = None

    def now(self) -> float:
        if self._ahead is None:
            raise RuntimeError("the clock was never set")
        return self._steady.now() + self._ahead

    async def set(self) -> None:
        """Ask the database for the time; raises DatabaseUnavailableError."""
        before = self._steady.now()
        told = await self._store.clock.now()
        after = self._steady.now()
        if self._ahead is None or after - before <= MOST_SECONDS_IN_DOUBT:
            self._ahead = told - (before + after) / 2

    async def run(self) -> None:
        """Ask again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(ASK_SECONDS)
            with suppress(DatabaseUnavailableError):
                await self.set()
