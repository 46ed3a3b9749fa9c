"""Adds the tokens that answers have cost to their API keys, beside the answers themselves.

A client that goes away cancels whatever answers it, so nothing of that may wait for a database.
"""

from collections import Counter

import structlog

from meshnet_common.edge.clock import Clock
from meshnet_tracker.bells import Bell
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.store import Store

AGAIN_SECONDS = 5.0

_logger = structlog.get_logger()


class TokenMeter:
    """Counts in memory for a moment; what a Tracker that is killed has not yet added is lost."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._spent: Counter[str] = Counter()
        self._soon = Bell()

    def spent(self, key_name: str, tokens: int) -> None:
        """Take up what an answer has cost, however it has ended."""
        self._spent[key_name] += tokens
        self._soon.ring()

    async def flush(self) -> None:
        """Add what was taken up; raises DatabaseUnavailableError, and then keeps it."""
        spent, self._spent = self._spent, Counter()
        if not spent:
            return
        try:
            await self._store.api_keys.spend(spent, self._clock.now())
        except DatabaseUnavailableError:
            self._spent.update(spent)
            raise

    async def run(self) -> None:
        """Flush until cancelled."""
        while True:
            await self._soon.wait(AGAIN_SECONDS)
            try:
                await self.flush()
            except DatabaseUnavailableError as error:
                _logger.warning("tokens are kept for later", reason=str(error))
