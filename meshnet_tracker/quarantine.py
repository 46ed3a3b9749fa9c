"""Requests that Workers fell over one after the other, kept from all others for a while; pure.

Nobody can tell a request that kills from one that met two losses by chance, so none is refused for
long. What is kept is no more than a digest of each.
"""

from meshnet_common.openai.errors import request_blamed
from meshnet_tracker.planning.snapshot import VariantKey

QUARANTINE_SECONDS = 300.0
MOST_REQUESTS = 10_000
"""The one that was refused for longest is forgotten first."""

Meaning = tuple[VariantKey, bytes]
"""What is asked of whom, however its body spells that."""


class Quarantine:
    """The requests that this Tracker gives to no Worker now."""

    def __init__(self) -> None:
        self._until: dict[Meaning, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def put(self, meaning: Meaning, now: float) -> None:
        """Refuse a request from now on."""
        self._until.pop(meaning, None)
        self._until[meaning] = now + QUARANTINE_SECONDS
        while len(self._until) > MOST_REQUESTS or self._oldest_until <= now:
            del self._until[next(iter(self._until))]

    def check(self, meaning: Meaning, now: float) -> None:
        """Raise ApiError 502 for a request that is to go to no Worker."""
        until = self._until.get(meaning)
        if until is None:
            return
        if until <= now:
            del self._until[meaning]
            return
        raise request_blamed(until - now)

    @property
    def _oldest_until(self) -> float:
        return next(iter(self._until.values()))
