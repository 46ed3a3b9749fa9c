"""A reading of the database that many requests share while it is fresh.

Whoever finds nothing in it asks again for a newer one, since a command may just have added it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from meshnet_common.edge.clock import loop_time

PAUSE_SECONDS = 0.1
"""So long at least between the beginnings of two readings of which nothing was forgotten: names and
keys that mean nothing cannot make it read all the time."""

T = TypeVar("T")


class KeptReading(Generic[T]):
    """Reads anew after so many seconds, and whenever it was told to forget."""

    def __init__(self, read: Callable[[], Awaitable[T]], fresh_seconds: float) -> None:
        self._read = read
        self._fresh_seconds = fresh_seconds
        self._reading = asyncio.Lock()
        self._kept: tuple[T, float] | None = None
        self._changes = 0

    def forget(self) -> None:
        """Read anew for the next request, also if a reading is under way now."""
        self._changes += 1
        self._kept = None

    async def get(self) -> T:
        """Return what was read; raises what reading raises."""
        stale = loop_time() - self._fresh_seconds
        if self._kept is not None and self._kept[1] > stale:
            return self._kept[0]
        return await self._read_after(stale)

    async def get_newer(self) -> T:
        """Return what was read after this call began; raises what reading raises."""
        return await self._read_after(loop_time())

    async def _read_after(self, moment: float) -> T:
        """Return what was read since; whoever waits for the same reading shares it."""
        async with self._reading:
            if self._kept is not None:
                found, began = self._kept
                if began > moment:
                    return found
                await asyncio.sleep(began + PAUSE_SECONDS - loop_time())
            changes, began = self._changes, loop_time()
            found = await self._read()
            if changes == self._changes:
                self._kept = found, began
            return found
