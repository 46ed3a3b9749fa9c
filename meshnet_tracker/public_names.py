"""Public names as requests see them: Aliases and Canaries, at most half a second old.

A change that this Tracker hears of counts from the next request on; those made by a command or by
another Tracker show by themselves.
"""

import asyncio

from meshnet_common.edge.clock import loop_time
from meshnet_tracker.models import NameBook
from meshnet_tracker.store.store import Store

FRESH_SECONDS = 0.5


class PublicNames:
    """Keeps the last reading while it is fresh; many readers share one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading = asyncio.Lock()
        self._kept: NameBook | None = None
        self._kept_at = 0.0
        self._changes = 0

    def forget(self) -> None:
        """Read anew for the next request, also if a reading is under way now."""
        self._changes += 1
        self._kept = None

    async def book(self) -> NameBook:
        """Return the names; raises DatabaseUnavailableError."""
        async with self._reading:
            if self._kept is not None and loop_time() - self._kept_at < FRESH_SECONDS:
                return self._kept
            changes, began = self._changes, loop_time()
            book = await self._store.aliases.book()
            if changes == self._changes:
                self._kept, self._kept_at = book, began
            return book
