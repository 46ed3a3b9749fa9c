"""Hears what other Trackers and commands have changed, and tells who waits for it in this process.

On PostgreSQL that is at once; where nothing can be listened to, a look each second shows it.
"""

import asyncio

import structlog

from meshnet_tracker.bells import Bell
from meshnet_tracker.services import Services
from meshnet_tracker.store.errors import DatabaseUnavailableError

LOOK_SECONDS = 1.0
PAUSE_SECONDS = 0.02
"""Much news at once is read at once."""

_logger = structlog.get_logger()


class Hearing:
    """Listens until it is cancelled."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._news = Bell()
        self._told: int | None = None
        self._epoch: int | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            while True:
                try:
                    await self.catch_up()
                except DatabaseUnavailableError as error:
                    _logger.warning("cannot hear of other trackers", reason=str(error))
                await asyncio.sleep(PAUSE_SECONDS)
                await self._news.wait(LOOK_SECONDS)

    async def catch_up(self) -> None:
        """Look once whether others have told news; raises DatabaseUnavailableError."""
        services = self._services
        told = await services.store.news.of_others()
        if self._told is not None and told != self._told:
            services.mesh_changed()
            services.turn.ask_soon()
        self._told = told
        before = self._epoch
        self._epoch, woken = await services.store.directives_issued_above(before or 0)
        if before is not None:
            services.directives.ring(woken)

    async def _listen(self) -> None:
        while True:
            try:
                await self._services.store.news.listen(self._news.ring)
            except DatabaseUnavailableError as error:
                _logger.warning("listens no more", reason=str(error))
            await asyncio.sleep(LOOK_SECONDS)
