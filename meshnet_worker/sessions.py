"""A Session as one Hop sees it, and the rule that decides which segments still count; pure.

Epochs fence: a lower one than the Hop's is stale and dropped unread, a higher one truncates the
Session to the segment's start and is adopted; with an equal one, a start below what is held is a
duplicate, above it a fault of that Session only. So a Head Worker that was frozen, replaced and
wakes up can write nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from meshnet_common.errors import MeshnetError
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import Body, Epoch, Segment
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.protocol.sampling import History, Sampling
from meshnet_common.protocol.tickets import RouteTicket

ORPHAN_SECONDS = 30.0
"""A Session without a Head Worker waits so long for another one."""
MOST_TOMBSTONES = 20_000
"""Strangers may have Sessions closed that nobody knows."""

Outlet = Callable[[Body], None]


class UnknownSessionError(MeshnetError):
    """No such Session is open on this Worker."""


class SegmentError(MeshnetError):
    """A segment does not continue its Session."""


@dataclass(slots=True)
class HopSession:
    """One open Session on this Hop; `held` counts positions that are computed or on their way."""

    ticket: RouteTicket
    place: int
    """Which Hop of the Route this Worker is, from 0."""
    engine_session: int
    wire_dtype: str
    row_bytes: int
    """Bytes of one position's hidden states as they arrive; 0 on the first Hop."""
    max_positions: int
    opening: Epoch
    """The epoch of its opening: another one with a higher epoch opens it anew."""
    epoch: Epoch
    last_heard: float
    held: int = 0
    capacity: int = 0
    """Positions that fit into empty pools of this Hop and of those before it."""
    sampling: Sampling | None = None
    """How its tokens are drawn from its latest opening on, once the Head Worker has said so."""
    outlet: Outlet | None = None
    """Where results go instead of down the Route: back to the caller of `POST /forward`."""
    is_orphan: bool = False
    """Whether its Head Worker is lost: it only waits for another one."""
    held_before: tuple[int, ...] = ()
    """What the Hops before this one held when it was opened; so is the next one."""
    kept_before: tuple[int, ...] = ()

    @property
    def session_id(self) -> str:
        return self.ticket.session_id

    @property
    def hop(self) -> RouteHop:
        return self.ticket.hops[self.place]

    @property
    def previous(self) -> RouteHop | None:
        return self.ticket.hops[self.place - 1] if self.place else None

    @property
    def following(self) -> RouteHop | None:
        return None if self.is_tail else self.ticket.hops[self.place + 1]

    @property
    def head(self) -> RouteHop:
        return self.ticket.hops[0]

    @property
    def is_tail(self) -> bool:
        return self.place == len(self.ticket.hops) - 1

    @property
    def ends_model(self) -> bool:
        return self.hop.end == self.ticket.layer_count

    def uses(self, worker_id: WorkerId) -> bool:
        """Whether this Hop and a Peer speak to each other, so that losing it is a fault."""
        beside = [self.previous, self.following, self.head]
        if self.place == 0:
            beside.append(self.ticket.hops[-1])
        return any(hop is not None and hop.worker_id == worker_id for hop in beside)

    def may_send(self, worker_id: WorkerId) -> bool:
        """Activations count only from the Route's previous Hop; the first feeds itself."""
        return worker_id == (self.previous or self.hop).worker_id

    def is_rolled_back_by(self, segment: Segment) -> bool:
        """Whether a segment truncates what is held, to its own start."""
        return segment.epoch > self.epoch and segment.start < self.held

    def accept(self, segment: Segment) -> bool:
        """Adopt a segment, or return False for one that is stale or a duplicate.

        Raises SegmentError for one that leaves a gap or goes beyond the reservation.
        """
        if segment.epoch < self.epoch:
            return False
        if segment.epoch == self.epoch and segment.start < self.held:
            return False
        if segment.start > self.held:
            raise SegmentError(f"It starts at {segment.start}, but {self.held} are held.")
        end = segment.start + segment.tokens
        if end > self.max_positions:
            raise SegmentError(f"It ends at {end}, but {self.max_positions} are reserved.")
        self.epoch, self.held = segment.epoch, end
        return True


class Arms(NamedTuple):
    """How an opening's tokens are to be drawn, and the answer so far where that depends on it."""

    sampling: Sampling
    history: History | None = None


class _Armed(NamedTuple):
    """The arms of a Session whose opening is still on its way."""

    arms: Arms
    opening: Epoch
    since: float


class _Tombstone(NamedTuple):
    """A Session that was closed here: in which epoch and when, and who may still hold it."""

    epoch: Epoch
    since: float
    following: RouteHop | None


class SessionTable:
    """The open Sessions of this Worker by id, with the tombstones of closed ones.

    A tombstone names the epoch that was closed and lives for one lease, so that a late frame
    revives nothing and alarms nobody, while a newer opening may follow.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._open: dict[str, HopSession] = {}
        self._by_engine: dict[int, HopSession] = {}
        self._tombstones: dict[str, _Tombstone] = {}
        self._armed: dict[str, _Armed] = {}
        self._next_engine_session = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[HopSession]:
        return iter(tuple(self._open.values()))

    def new_engine_session(self) -> int:
        self._next_engine_session += 1
        return self._next_engine_session

    def add(self, session: HopSession) -> None:
        self._open[session.ticket.session_id] = session
        self._by_engine[session.engine_session] = session

    def find(self, session_id: str) -> HopSession | None:
        return self._open.get(session_id)

    def of_engine(self, engine_session: int) -> HopSession | None:
        return self._by_engine.get(engine_session)

    def is_buried(self, session_id: str, epoch: Epoch = (0, 0)) -> bool:
        """Whether a Session was closed within a lease, in this epoch or a later one."""
        buried = self._tombstones.get(session_id)
        return buried is not None and epoch <= buried.epoch

    def bury(
        self, session_id: str, epoch: Epoch, now: float, following: RouteHop | None = None
    ) -> None:
        """Leave a tombstone, also for a Session whose opening is still on its way.

        Where the Hops after this one still hold it, `following` is who hears of its closing.
        """
        # Taken out and put back, so that the oldest is always the first.
        buried = self._tombstones.pop(session_id, None)
        if buried is not None:
            epoch, following = max(epoch, buried.epoch), following or buried.following
        self._tombstones[session_id] = _Tombstone(epoch, now, following)
        if len(self._tombstones) > MOST_TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def take_holder_after(self, session_id: str) -> RouteHop | None:
        """The next Hop of a buried Session that may not have heard of its closing; only once."""
        buried = self._tombstones.get(session_id)
        if buried is None or buried.following is None:
            return None
        self._tombstones[session_id] = buried._replace(following=None)
        return buried.following

    def arm(self, session_id: str, arms: Arms, opening: Epoch, now: float) -> None:
        """Keep how a Session is to be drawn until its opening arrives down the Route."""
        kept = self._armed.get(session_id)
        if kept is None or kept.opening <= opening:
            self._armed[session_id] = _Armed(arms, opening, now)

    def armed(self, session_id: str, opening: Epoch) -> Arms | None:
        """Take what was kept for this opening; the answer has changed since those before it."""
        kept = self._armed.get(session_id)
        if kept is None or kept.opening > opening:
            return None
        del self._armed[session_id]
        return kept.arms if kept.opening == opening else None

    def remove(self, session: HopSession, now: float) -> None:
        """Close a Session and leave its tombstone."""
        self._open.pop(session.ticket.session_id, None)
        self._by_engine.pop(session.engine_session, None)
        self.bury(session.ticket.session_id, session.epoch, now)

    def orphan(self, session: HopSession, now: float) -> None:
        """Its Head Worker is lost: without a new one it is soon freed."""
        session.is_orphan = True
        soon = now - self._lease_seconds + ORPHAN_SECONDS
        session.last_heard = min(session.last_heard, soon)

    def expired(self, now: float) -> tuple[HopSession, ...]:
        """Forget old tombstones; return the Sessions that nobody has fed for a lease."""
        oldest = now - self._lease_seconds
        self._tombstones = {k: kept for k, kept in self._tombstones.items() if kept.since > oldest}
        self._armed = {k: kept for k, kept in self._armed.items() if kept.since > oldest}
        return tuple(s for s in self._open.values() if s.last_heard <= oldest)
