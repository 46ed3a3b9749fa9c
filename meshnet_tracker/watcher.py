"""Looks after the Mesh once a second: lost Workers, what has expired, news of other processes.

Time in which this Tracker or its database was away is not held against a Worker, since nobody
could take its heartbeats then.
"""

import asyncio

import structlog

from meshnet_tracker.services import Services
from meshnet_tracker.store.errors import DatabaseUnavailableError

LOOK_SECONDS = 1.0
MOST_SECONDS_BETWEEN_LOOKS = 3.0
"""After a longer pause (a suspended machine, a blocked process) all Workers start afresh."""

_logger = structlog.get_logger()


class Watcher:
    """Looks until it is cancelled."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._patient_from = services.clock.now()
        self._looked_at = services.clock.now()
        self._preset_version: int | None = None
        self._epoch: int | None = None

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except DatabaseUnavailableError as error:
                self._patient_from = self._services.clock.now()
                _logger.warning("database does not answer", reason=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look once; raises DatabaseUnavailableError."""
        now = self._services.clock.now()
        if now - self._looked_at > MOST_SECONDS_BETWEEN_LOOKS:
            self._patient_from = now
        self._looked_at = now
        changes = (
            await self._mark_lost(now),
            await self._expire(now),
            await self._presets_changed(),
        )
        if any(changes):
            self._services.mesh_changed()
        await self._wake_pollers()
        await self._services.signer.refresh()
        await self._services.store.sweep_incarnations(now - self._services.settings.renewal_seconds)

    async def _mark_lost(self, now: float) -> bool:
        lost_after = self._services.settings.lost_after_seconds
        if now - self._patient_from < lost_after:
            return False
        lost = await self._services.store.mark_lost(now - lost_after, now)
        for worker_id in lost:
            _logger.warning("worker lost", worker=worker_id, silent_seconds=lost_after)
            self._services.worker_lost(worker_id)
        return bool(lost)

    async def _expire(self, now: float) -> bool:
        expired = await self._services.store.expire_directives(now)
        for directive in expired:
            _logger.warning(
                "directive expired; the gap is critical",
                kind=directive.kind,
                model=directive.model,
                layers=f"[{directive.start_layer}, {directive.end_layer})",
                reason=directive.reason,
            )
        return bool(expired)

    async def _presets_changed(self) -> bool:
        version = await self._services.store.preset_version()
        changed = self._preset_version is not None and version != self._preset_version
        self._preset_version = version
        return changed

    async def _wake_pollers(self) -> None:
        # Another Tracker on this database may have issued directives to Workers that poll here.
        before = self._epoch
        self._epoch, woken = await self._services.store.directives_issued_above(before or 0)
        if before is not None:
            self._services.directives.ring(woken)
