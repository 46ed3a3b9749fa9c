"""Looks after the Mesh once a second: lost Workers, what has expired, keys, old Sessions.

Who is lost and what has expired is judged by the Tracker whose turn it is to plan, and by no other.
Time in which this Tracker or its database was away is not held against a Worker, since nobody could
take its heartbeats then.
"""

import asyncio
from collections.abc import Sequence

import structlog

from meshnet_tracker.loss_rules import is_mass_loss, patience_seconds
from meshnet_tracker.records import Term, WorkerPlace
from meshnet_tracker.services import Services
from meshnet_tracker.store.errors import DatabaseUnavailableError, StaleTermError

LOOK_SECONDS = 1.0
MOST_SECONDS_BETWEEN_LOOKS = 3.0
"""After a longer pause (a suspended machine, a blocked process) all Workers start afresh."""

SWEEP_SECONDS = 60.0
PROBES_AT_ONCE = 100

_logger = structlog.get_logger()


class Watcher:
    """Looks until it is cancelled."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._patient_from = services.clock.now()
        self._looked_at = services.clock.now()
        self._swept_at = services.clock.now()
        self._cooled_until = services.clock.now()
        self._term_number: int | None = None

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except DatabaseUnavailableError as error:
                self._patient_from = self._services.clock.now()
                _logger.warning("database does not answer", reason=str(error))
            except StaleTermError:
                _logger.info("another tracker looks after the mesh")
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look once; raises DatabaseUnavailableError and StaleTermError."""
        services = self._services
        now = services.clock.now()
        if now - self._looked_at > MOST_SECONDS_BETWEEN_LOOKS:
            self._patient_from = now
        term = services.turn.term
        if term is None:
            self._term_number = None
            services.frozen.clear()
        else:
            await self._look_after(term, now)
        await services.signer.refresh()
        await services.store.sweep_incarnations(now - services.settings.renewal_seconds)
        # Looking may have taken long, by many probes; that is no pause.
        self._looked_at = services.clock.now()

    async def _look_after(self, term: Term, now: float) -> None:
        if term.number != self._term_number:
            self._term_number, self._patient_from = term.number, now
        changes = await self._mark_lost(term, now), await self._expire(term, now)
        if any(changes):
            self._services.mesh_changed()
        if await self._has_cooled_down(now):
            self._services.rebalance.ring()
        if now - self._swept_at > SWEEP_SECONDS:
            self._swept_at = now
            await self._services.store.losses.sweep(now)

    async def _has_cooled_down(self, now: float) -> bool:
        """Whether some Worker may load again that could not at the last look."""
        before, self._cooled_until = self._cooled_until, now
        workers = (await self._services.view.snapshot()).workers
        return any(before < worker.cooling_until <= now for worker in workers)

    async def _mark_lost(self, term: Term, now: float) -> bool:
        services = self._services
        lost_after = services.settings.lost_after_seconds
        if now - self._patient_from < patience_seconds(lost_after):
            return False
        late = await services.store.losses.late(now - lost_after)
        silent = late.places
        if is_mass_loss(len(late.places), late.live):
            silent = await self._probe(late.places)
        elif services.frozen.is_set():
            _logger.warning("planning goes on")
            services.frozen.clear()
            services.rebalance.ring()
        if not silent:
            return False
        lost = await services.store.losses.mark(
            [place.worker_id for place in silent], now - lost_after, now, term
        )
        for worker_id in lost:
            _logger.warning("worker lost", worker=worker_id, silent_seconds=lost_after)
            services.worker_lost(worker_id)
        return bool(lost)

    async def _probe(self, places: Sequence[WorkerPlace]) -> tuple[WorkerPlace, ...]:
        """Ask Workers that fell silent at once whether they live; answers who does not answer."""
        services = self._services
        if not services.frozen.is_set():
            _logger.warning("many workers fell silent at once; planning waits", workers=len(places))
            services.frozen.set()
        silent: list[WorkerPlace] = []
        for first in range(0, len(places), PROBES_AT_ONCE):
            silent.extend(await services.probes.silent(places[first : first + PROBES_AT_ONCE]))
        living = {place.worker_id for place in places} - {place.worker_id for place in silent}
        if living:
            await services.store.losses.note_alive(living, services.clock.now())
        return tuple(silent)

    async def _expire(self, term: Term, now: float) -> bool:
        expired = await self._services.store.expire_directives(now, term)
        for directive in expired:
            _logger.warning(
                "directive expired; the gap is critical",
                kind=directive.kind,
                model=directive.model,
                layers=f"[{directive.start_layer}, {directive.end_layer})",
                reason=directive.reason,
            )
        return bool(expired)
