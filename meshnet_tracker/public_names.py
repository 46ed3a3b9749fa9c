"""Public names as requests see them: Aliases and Canaries, at most half a second old.

A change that this Tracker hears of counts from the next request on; those made by a command or by
another Tracker show by themselves, and at once for a name that was unknown.
"""

from meshnet_tracker.kept_reading import KeptReading
from meshnet_tracker.models import NameBook
from meshnet_tracker.store.store import Store

FRESH_SECONDS = 0.5


class PublicNames:
    """Keeps the last reading while it is fresh."""

    def __init__(self, store: Store) -> None:
        self._books = KeptReading(store.aliases.book, FRESH_SECONDS)

    def forget(self) -> None:
        """Read anew for the next request, also if a reading is under way now."""
        self._books.forget()

    async def book(self) -> NameBook:
        """Return the names; raises DatabaseUnavailableError."""
        return await self._books.get()

    async def newer_book(self) -> NameBook:
        """Return the names as they are from now on; raises DatabaseUnavailableError."""
        return await self._books.get_newer()
