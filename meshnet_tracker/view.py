"""The Mesh as requests see it: a snapshot that is at most half a second old.

Reading the whole Mesh for each request would cost more than routing it. A change that this Tracker
hears of makes the next request read again; those made by another Tracker show by themselves.
"""

import asyncio

from meshnet_tracker.planning.snapshot import MeshSnapshot
from meshnet_tracker.store.store import Store

FRESH_SECONDS = 0.5


class MeshView:
    """Keeps the last snapshot while it is fresh; many readers share one reading."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading = asyncio.Lock()
        self._kept: MeshSnapshot | None = None
        self._kept_at = 0.0
        self._changes = 0

    def forget(self) -> None:
        """Read anew for the next request, also if a reading is under way now."""
        self._changes += 1
        self._kept = None

    async def snapshot(self) -> MeshSnapshot:
        """Return the Mesh with every change that was told before this call."""
        async with self._reading:
            now = asyncio.get_running_loop().time()
            if self._kept is not None and now - self._kept_at < FRESH_SECONDS:
                return self._kept
            changes = self._changes
            snapshot = (await self._store.load_snapshot()).snapshot
            if changes == self._changes:
                self._kept, self._kept_at = snapshot, now
            return snapshot
