"""A reading of the database that many requests share while it is fresh."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from meshnet_common.edge.clock import loop_time

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
        async with self._reading:
            if self._kept is not None and loop_time() - self._kept[1] < self._fresh_seconds:
                return self._kept[0]
            changes, began = self._changes, loop_time()
            found = await self._read()
            if changes == self._changes:
                self._kept = found, began
            return found
