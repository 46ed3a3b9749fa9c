"""Requests that wait for a model's Layers, in the order of their admission; pure."""

from collections.abc import Iterator
from contextlib import contextmanager

from meshnet_tracker.planning.snapshot import VariantKey


class HeldRequests:
    """Who waits in this Tracker, for each Variant."""

    def __init__(self) -> None:
        self._sequences: dict[VariantKey, set[int]] = {}

    @contextmanager
    def waiting(self, key: VariantKey, sequence: int) -> Iterator[None]:
        """Count the request with this admission number as one that waits, inside the block."""
        own = self._sequences.setdefault(key, set())
        own.add(sequence)
        try:
            yield
        finally:
            own.discard(sequence)
            if not own:
                self._sequences.pop(key, None)

    def ahead(self, key: VariantKey, sequence: int) -> int:
        """How many that wait were admitted before this one."""
        return sum(other < sequence for other in self._sequences.get(key, ()))
