"""One Session as its Head Worker sees it, and what may go wrong with it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from meshnet_common.errors import MeshnetError
from meshnet_common.protocol.bodies import ChosenToken, CloseBody, Epoch, ErrorBody
from meshnet_common.protocol.messages import HopFault, RouteHop
from meshnet_common.protocol.sampling import Sampling
from meshnet_worker.generation import Generation
from meshnet_worker.tickets import SignedRoute

OPEN_SECONDS = 5.0
SILENCE_SECONDS = 15.0
"""A Route that gives no sign for this long is a fault; Peers that die are found much sooner."""
FIRST_BACK_OFF_SECONDS = 0.1
MOST_DOUBLINGS = 4
ENGINE_FAULTS = frozenset({"engine_failed", "engine_lost"})
MOST_ENGINE_FAULTS = 4
"""A request with which engines fail so often at the same place goes to no other."""


class HopFailedError(MeshnetError):
    """A Hop of the Route failed."""

    def __init__(self, fault: ErrorBody) -> None:
        super().__init__(f"Worker {fault.worker_id}: {fault.message} ({fault.code})")
        self.code = fault.code
        self.facts = fault.message
        self.kv = fault.kv


class BlamedError(HopFailedError):
    """Whoever works on this request fails."""


class NoRoomError(MeshnetError):
    """The Mesh has no room for this answer now."""


class RouteSilentError(MeshnetError):
    """The Route has gone silent."""


class RouteLostError(MeshnetError):
    """The Route has failed, and there is no other."""


class Phase(Enum):
    """Where a Session stands."""

    WAITING = auto()
    """For its turn; no Hop holds anything for it."""
    OPENING = auto()
    RUNNING = auto()
    MENDING = auto()
    """Its Route has failed; what other Hops hold for it is kept."""


@dataclass(slots=True)
class Mending:
    """The search for a Route around what has failed, until a token comes again."""

    since: float
    faults: list[ErrorBody] = field(default_factory=list)
    """The latest of each Worker."""
    engine_faults: int = 0
    """How often engines have failed with it since it last made progress."""
    felled: dict[str, Epoch | None] = field(default_factory=dict)
    """Whose engines, and under which opening first."""
    tries: int = 0
    refusal: MeshnetError | None = None
    """Why there was no fresh Route the last time."""

    def take(self, fault: ErrorBody, opening: Epoch | None) -> None:
        """Take up a fault of this opening."""
        others = [other for other in self.faults if other.worker_id != fault.worker_id]
        self.faults = [*others, fault]
        if fault.code in ENGINE_FAULTS:
            self.engine_faults += 1
            self.felled.setdefault(fault.worker_id, opening)

    def goes_on(self, now: float) -> None:
        """Take up progress: the Route has more time to be mended."""
        self.since, self.engine_faults = now, 0
        self.felled.clear()

    @property
    def is_poison(self) -> bool:
        """Whether it is rather the request that fails, wherever it runs.

        It is when engines of two Workers have failed one after the other, not both at once.
        """
        is_followed = len(set(self.felled.values())) > 1
        return is_followed or self.engine_faults >= MOST_ENGINE_FAULTS

    @property
    def back_off_seconds(self) -> float:
        """The first try is made at once."""
        doublings = min(self.tries - 1, MOST_DOUBLINGS)
        return FIRST_BACK_OFF_SECONDS * (1 << doublings) if self.tries else 0.0

    @property
    def error(self) -> MeshnetError:
        """What its client is told when the search is given up."""
        fault = self.faults[-1]
        if self.is_poison:
            return BlamedError(fault)
        if self.refusal is not None:
            return RouteLostError(str(self.refusal))
        return HopFailedError(fault) if fault.worker_id else RouteSilentError(fault.message)


class News(NamedTuple):
    """What has become of a Session."""

    session: "HeadSession"
    what: ChosenToken | MeshnetError | None
    """A token, in order, None where it ends without another, or a fault, at most one."""


@dataclass(slots=True, eq=False)
class HeadSession:
    """One generation and those who wait for it; moments are the event loop's."""

    route: SignedRoute
    generation: Generation
    sampling: Sampling
    news: "asyncio.Queue[News]"
    """What becomes of all Sessions of its answer."""
    heard_at: float
    """When its Route last gave a sign."""
    phase: Phase = Phase.WAITING
    opening: Epoch | None = None
    """The epoch of its latest opening."""
    faults: list[ErrorBody] = field(default_factory=list)
    """The latest want of KV, after any of a Worker too small for its prompt."""
    outgrown: frozenset[str] = frozenset()
    """Workers on which an answer that has begun elsewhere could not go on."""
    reached: int = 0
    """The highest position that was ever computed on a whole Route."""
    mending: Mending | None = None
    moving: ErrorBody | None = None
    """A Hop that drains: the Session runs on, and leaves it if there is another way."""
    is_handed_over: bool = False
    """Whether another Head Worker goes on with it, and with what the other Hops hold."""
    left: dict[str, tuple[RouteHop, Epoch]] = field(default_factory=dict)
    """Hops of earlier Routes, which may still hold something for it."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    """Who drives it."""
    answer: "Sequence[HeadSession]" = ()
    """All Sessions of its answer."""

    @property
    def is_held_up_by_its_answer(self) -> bool:
        """Whether another choice of its own answer still holds what it may wait for."""
        return any(
            other.phase is not Phase.WAITING and not other.generation.finished
            for other in self.answer
            if other is not self
        )

    @property
    def refused_by(self) -> frozenset[str]:
        """The Workers without KV for it, that a fresh Route should avoid."""
        hopeless = [fault.worker_id for fault in self.faults if self._is_too_small(fault)]
        # One that only cut the reservation has room for it now.
        others = [fault.worker_id for fault in self.faults if fault.code != "kv_capacity"]
        return frozenset((*hopeless, *others, *self.outgrown))

    @property
    def is_felled(self) -> bool:
        """Whether it stands still since this Worker's own engine was lost."""
        own = self.route.ticket.hops[0].worker_id
        return self.mending is not None and own in self.mending.felled

    @property
    def hop_faults(self) -> tuple[HopFault, ...]:
        """Who has failed since the last token."""
        faults = self.mending.faults if self.mending else []
        return tuple(
            HopFault(worker_id=fault.worker_id, code=fault.code)
            for fault in faults
            if fault.worker_id
        )

    def goes_on_from(self, fault: ErrorBody) -> None:
        """Keep a want of KV after which the Session is opened again."""
        self.faults = [*filter(self._is_too_small, self.faults), fault]
        self.mending = None
        self.tell()

    def is_hurt(self, fault: ErrorBody, now: float) -> None:
        """Keep a fault around which its Route is to be mended."""
        self.mending = self.mending or Mending(now)
        self.mending.take(fault, self.opening)
        self.phase = Phase.MENDING
        self.tell()

    def has_reached(self, position: int, now: float) -> None:
        """Take up what is computed: what never was before is progress."""
        if position > self.reached:
            self.reached = position
            if self.mending is not None:
                self.mending.goes_on(now)

    def report(self, what: ChosenToken | MeshnetError | None) -> None:
        """Let who reads its answer know, who takes it when there is time."""
        self.news.put_nowait(News(self, what))

    def tell(self) -> None:
        """Wake who drives it: something has changed."""
        self.changed.set()

    def is_hit_by(self, fault: ErrorBody) -> bool:
        """Whether a fault is one of its present opening, not of one before."""
        if self.phase is Phase.WAITING:
            return False
        return fault.epoch is None or self.opening is None or fault.epoch >= self.opening

    def closes(self) -> dict[str, tuple[RouteHop, CloseBody]]:
        """What frees it on every Hop that may hold something for it."""
        session_id, epoch = self.generation.session_id, self.generation.epoch
        present = {hop.worker_id: (hop, epoch) for hop in self.route.ticket.hops}
        return {
            worker_id: (hop, CloseBody(session_id=session_id, epoch=of))
            for worker_id, (hop, of) in {**self.left, **present}.items()
        }

    def _is_too_small(self, fault: ErrorBody) -> bool:
        if fault.code != "kv_capacity" or fault.kv is None:
            return False
        return fault.kv.capacity < len(self.generation.prompt_ids)

    def wait_error(self, waited_seconds: float) -> NoRoomError:
        """Say how long it has waited, and what it was told last."""
        facts = [f"Worker {fault.worker_id}: {fault.message}" for fault in self.faults]
        others = [] if facts else ["Others were before it."]
        return NoRoomError(" ".join((f"It waited {waited_seconds:.0f} seconds.", *facts, *others)))
