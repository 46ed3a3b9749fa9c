"""The Mesh as requests see it: a copy that is at most half a second old.

Reading the whole Mesh for each request would cost more than routing it: only what has changed is
read. A change that this Tracker hears of makes the next request read again; those made by another
Tracker show by themselves.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from meshnet_common.presets import ModelPreset
from meshnet_tracker.batches import Batches
from meshnet_tracker.mesh_copy import MeshCopy
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.snapshot import MeshSnapshot
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.snapshots import MeshNumbers
from meshnet_tracker.store.store import Store

FRESH_SECONDS = 0.5
READ_PAUSE_SECONDS = 0.1
"""So long at least between the beginnings of two readings, while Workers come and go."""

KEEP_WARM_SECONDS = 2.0
WHOLE_AGAIN_SECONDS = 60.0
"""After so long without reading all is read, since Workers that went may be forgotten by then."""


class MeshView:
    """Keeps the copy while it is fresh; many readers share one reading."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._copy = MeshCopy()
        self._readings = Batches(self._read, READ_PAUSE_SECONDS)
        self._read_at = float("-inf")
        self._changes = 0
        self._changes_seen = -1

    def forget(self) -> None:
        """Read anew for the next request, also if a reading is under way now."""
        self._changes += 1

    async def snapshot(self) -> MeshSnapshot:
        """Return the Mesh with every change that was told before this call."""
        await self._refresh()
        return self._copy.snapshot()

    async def routes(self) -> RouteTable:
        """Return the Route Table with every change that was told before this call."""
        await self._refresh()
        return self._copy.routes

    async def presets(self) -> tuple[ModelPreset, ...]:
        """Return what is served, with every change that was told before this call."""
        await self._refresh()
        return self._copy.settings.presets

    @property
    def table(self) -> RouteTable:
        """The Route Table as it was read last; always the same object."""
        return self._copy.routes

    async def run(self) -> None:
        """Keep the copy warm while nobody asks, so that the next request need not read much."""
        while True:
            with suppress(DatabaseUnavailableError):
                await self._refresh()
            await asyncio.sleep(KEEP_WARM_SECONDS)

    async def _refresh(self) -> None:
        now = asyncio.get_running_loop().time()
        is_known = self._changes_seen == self._changes
        if not is_known or now - self._read_at >= FRESH_SECONDS:
            await self._readings.submit(None)

    async def _read(self, readers: Sequence[None]) -> Sequence[None]:
        now = asyncio.get_running_loop().time()
        changes = self._changes
        is_old = now - self._read_at > WHOLE_AGAIN_SECONDS
        known = MeshNumbers() if is_old else self._copy.numbers
        self._copy.apply(await self._store.mesh.changes(known))
        self._read_at, self._changes_seen = now, changes
        return readers
