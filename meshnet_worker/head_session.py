"""One Session as its Head Worker sees it, and what may go wrong with it."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto

from meshnet_common.errors import MeshnetError
from meshnet_common.protocol.bodies import Epoch, ErrorBody, Sampling
from meshnet_worker.generation import Generation
from meshnet_worker.tickets import SignedRoute

OPEN_SECONDS = 10.0
SILENCE_SECONDS = 60.0
"""A Route that gives neither token nor progress for this long is a fault."""


class HopFailedError(MeshnetError):
    """A Hop of the Route failed."""

    def __init__(self, fault: ErrorBody) -> None:
        super().__init__(f"Worker {fault.worker_id}: {fault.message} ({fault.code})")
        self.code = fault.code
        self.kv = fault.kv


class NoRoomError(MeshnetError):
    """The Mesh has no room for this answer now."""


class RouteSilentError(MeshnetError):
    """The Route has gone silent."""


class Phase(Enum):
    """Where a Session stands."""

    WAITING = auto()
    """No Hop holds anything for it."""
    OPENING = auto()
    RUNNING = auto()


@dataclass(slots=True)
class HeadSession:
    """One generation and those who wait for it."""

    route: SignedRoute
    generation: Generation
    sampling: Sampling
    news: asyncio.Queue[int | MeshnetError | None]
    """Tokens in order, None for any other sign of life, and at most one fault."""
    phase: Phase = Phase.WAITING
    opening: Epoch | None = None
    """The epoch of its latest opening."""
    faults: list[ErrorBody] = field(default_factory=list)
    """The latest one that it goes on from, after any of a Worker too small for its prompt."""

    @property
    def refused_by(self) -> frozenset[str]:
        """The Workers that a fresh Route should avoid."""
        hopeless = (fault.worker_id for fault in self.faults if self._is_too_small(fault))
        # One that only cut the reservation has room for it now.
        others = (fault.worker_id for fault in self.faults if fault.code != "kv_capacity")
        return frozenset((*hopeless, *others))

    def goes_on_from(self, fault: ErrorBody) -> None:
        """Keep a fault after which the Session is opened again."""
        self.faults = [*filter(self._is_too_small, self.faults), fault]
        self.tell()

    def tell(self) -> None:
        """Wake the reader; one sign is enough, so that no Peer can fill the queue with them."""
        if self.news.empty():
            self.news.put_nowait(None)

    def is_hit_by(self, fault: ErrorBody) -> bool:
        """Whether a fault is one of its present opening, not of one before."""
        if self.phase is Phase.WAITING:
            return False
        return fault.epoch is None or self.opening is None or fault.epoch >= self.opening

    def _is_too_small(self, fault: ErrorBody) -> bool:
        if fault.code != "kv_capacity" or fault.kv is None:
            return False
        return fault.kv.capacity < len(self.generation.prompt_ids)

    async def next_news(self) -> int | MeshnetError | None:
        """Wait for the next token or sign of life; raises RouteSilentError."""
        is_opening = self.phase is Phase.OPENING
        try:
            async with asyncio.timeout(OPEN_SECONDS if is_opening else SILENCE_SECONDS):
                return await self.news.get()
        except TimeoutError as error:
            if is_opening:
                facts = f"Nobody opened it in {OPEN_SECONDS:.0f} seconds."
            else:
                facts = f"Neither token nor progress came for {SILENCE_SECONDS:.0f} seconds."
            raise RouteSilentError(facts) from error

    def wait_error(self, waited_seconds: float) -> NoRoomError:
        """Say how long it has waited, and what it was told last."""
        facts = [f"Worker {fault.worker_id}: {fault.message}" for fault in self.faults]
        others = [] if facts else ["Others were before it."]
        return NoRoomError(" ".join((f"It waited {waited_seconds:.0f} seconds.", *facts, *others)))
