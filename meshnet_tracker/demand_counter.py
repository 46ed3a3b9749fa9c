"""Counts the requests for each Variant, and adds them to the database now and then."""

import asyncio
from collections import Counter

import structlog

from meshnet_common.edge.clock import Clock
from meshnet_tracker.planning.snapshot import VariantKey
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.store import Store

FLUSH_SECONDS = 5.0

_logger = structlog.get_logger()


class DemandCounter:
    """Counts in memory; what a Tracker that is killed has not yet added is lost."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._counted: Counter[VariantKey] = Counter()

    def count(self, variant: VariantKey) -> None:
        """Count one request for a Variant."""
        self._counted[variant] += 1

    async def flush(self) -> None:
        """Add what was counted; raises DatabaseUnavailableError, and then keeps it."""
        counted, self._counted = self._counted, Counter()
        try:
            await self._store.demand.add(counted, self._clock.now())
        except DatabaseUnavailableError:
            self._counted.update(counted)
            raise

    async def run(self) -> None:
        """Flush until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self.flush()
            except DatabaseUnavailableError as error:
                _logger.warning("demand is kept for later", reason=str(error))
