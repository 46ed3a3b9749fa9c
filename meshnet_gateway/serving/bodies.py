"""How many bytes of requests may be in memory at once, on their way, held or in line; pure."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from meshnet_common.openai.errors import overloaded
from meshnet_gateway.serving.admission import RETRY_AFTER_SECONDS


@dataclass(slots=True)
class Bodies:
    """The bodies of all requests that are here."""

    most_bytes: int
    held_bytes: int = 0

    @contextmanager
    def holding(self, announced_bytes: int) -> Iterator["HeldBody"]:
        """Hold one body inside the block, from before it is read; raises ApiError 503."""
        if self.held_bytes + announced_bytes > self.most_bytes:
            raise overloaded("Too many long requests are here already.", RETRY_AFTER_SECONDS)
        body = HeldBody(self, announced_bytes)
        self.held_bytes += announced_bytes
        try:
            yield body
        finally:
            body.settle(0)


@dataclass(slots=True)
class HeldBody:
    """One of them, by its announced length until it has been read."""

    bodies: Bodies
    size_bytes: int

    def settle(self, size_bytes: int) -> None:
        """Take in how long it is."""
        self.bodies.held_bytes += size_bytes - self.size_bytes
        self.size_bytes = size_bytes
