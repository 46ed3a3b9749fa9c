"""A Head Worker's side of its Sessions: who they are, and what their Routes say of them.

The next Decode Step leaves as soon as a token has come back, before anybody reads it: text and
streaming never stand between two steps. A Session without KV waits for its turn, one whose Route
has failed is mended; whoever reads its tokens sees only time.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from meshnet_common.edge.clock import loop_time
from meshnet_common.errors import TicketError
from meshnet_common.protocol.bodies import (
    ActivationFrame,
    ActivationsHeader,
    ChosenToken,
    ErrorBody,
    OpenedBody,
    ProgressBody,
    ReplayBody,
    Segment,
    TokensBody,
)
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.head_driver import Bell, HeadDriver, HeadRoom, opening
from meshnet_worker.head_session import HeadSession, HopFailedError, Phase
from meshnet_worker.head_tokens import Asked, Tokens
from meshnet_worker.requeue import BAD_TICKET, DRAINING, KV_CAPACITY, MENDABLE, goes_on
from meshnet_worker.waiting_room import WaitingRoom


class Heads:
    """The Sessions of which this Worker is the Head Worker."""

    def __init__(self, room: HeadRoom) -> None:
        self._room = room
        self._sessions: dict[str, HeadSession] = {}
        self._waiting = WaitingRoom(room.wait_seconds)
        self._bell = Bell()
        self._driver = HeadDriver(room, self._waiting, self._bell)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def waiting(self) -> int:
        """Sessions that wait for KV."""
        return len(self._waiting)

    def ticket_of(self, session_id: str) -> RouteTicket | None:
        """The present Route Ticket of one of these Sessions."""
        session = self._sessions.get(session_id)
        return session.route.ticket if session else None

    def hand_over(self, session_id: str) -> None:
        """Leave what the other Hops hold for a Session to its next Head Worker."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.is_handed_over = True

    def is_felled(self, session_id: str) -> bool:
        """Whether a Session stands still since this Worker's engine was lost."""
        session = self._sessions.get(session_id)
        return session is not None and session.is_felled

    @asynccontextmanager
    async def generating(self, *asked: Asked) -> AsyncIterator[Tokens]:
        """Yield the new tokens of an answer's Sessions, which are closed with the block.

        The tokens raise HopFailedError, NoRoomError, RouteLostError or RouteSilentError. Raises
        TicketError for a Session that is open already: two answers of one ticket would mix.
        """
        if any(one.generation.session_id in self._sessions for one in asked):
            raise TicketError("Its Session is open already.")
        tokens = Tokens(asked, self._room.is_stuck, self._leave)
        for session in tokens.sessions:
            self._sessions[session.generation.session_id] = session
        try:
            for session in tokens.sessions:
                self._waiting.arrive(session.route.ticket, loop_time())
                session.task = self._room.start(self._driver.drive(session))
            yield tokens
        finally:
            for session in tokens.sessions:
                tokens.leave(session.generation.session_id)

    def ahead(self, session_id: str) -> int:
        """How many Sessions wait for KV before this one."""
        return self._waiting.ahead(session_id)

    def on_opened(self, body: OpenedBody) -> None:
        session = self._sessions.get(body.session_id)
        if session is None or session.phase is not Phase.OPENING or body.epoch != session.opening:
            return
        session.phase, session.heard_at = Phase.RUNNING, loop_time()
        if body.capacity:
            session.generation.capacity = body.capacity
        self._leave_line(session)
        self._close_left(session)
        session.generation.on_opened(body.held, body.kept, body.credits)
        self._feed(session, session.generation.due())
        session.tell()

    def on_tokens(self, body: TokensBody) -> None:
        for token in body.tokens:
            session = self._sessions.get(token.session_id)
            if session is not None:
                self._on_token(session, token)

    def on_progress(self, body: ProgressBody) -> None:
        session = self._sessions.get(body.session_id)
        if session is not None and session.phase is Phase.RUNNING:
            session.heard_at = loop_time()
            if not body.waits and body.epoch == session.generation.epoch:
                session.has_reached(body.position, loop_time())
            self._feed(session, session.generation.on_progress(body))

    def on_error(self, body: ErrorBody) -> bool:
        """Hear of a fault; returns whether the Session is one of this Head Worker's."""
        session = self._sessions.get(body.session_id)
        if session is None:
            return False
        if not session.is_hit_by(body):
            return True
        if body.code == DRAINING and session.phase is Phase.RUNNING:
            session.moving = body
            session.tell()
        elif body.code in MENDABLE or (body.code == BAD_TICKET and session.mending is not None):
            # A ticket may cross what it was to mend; one that never opens is given up in time.
            session.is_hurt(body, loop_time())
        else:
            self._on_want(session, body)
        return True

    def on_freed(self) -> None:
        """KV was freed on this Worker."""
        if len(self._waiting):
            self._waiting.freed(loop_time())
            self._bell.ring()

    def _leave(self, session: HeadSession) -> None:
        """Nobody reads it any more."""
        if session.task is not None:
            session.task.cancel()
        del self._sessions[session.generation.session_id]
        self._leave_line(session)
        self._end(session)

    def _on_want(self, session: HeadSession, body: ErrorBody) -> None:
        """It got no KV, or lost it, or can never run here."""
        if body.code == KV_CAPACITY and session.generation.is_reopened:
            session.outgrown |= {body.worker_id}
        # At once, whatever its driver does: nothing that waits may hold KV.
        self._close(session)
        if goes_on(body, session.route.ticket, session.generation, self._waiting, loop_time()):
            session.goes_on_from(body)
            if session.generation.finished:
                session.report(None)
        elif not session.news.full():
            session.report(HopFailedError(body))

    def _on_token(self, session: HeadSession, token: ChosenToken) -> None:
        generation = session.generation
        if not generation.on_token(token):
            return
        session.heard_at = loop_time()
        session.has_reached(token.position, loop_time())
        session.report(token)
        if generation.finished:
            # Now, not when somebody has read it all.
            self._close(session)
            session.tell()
        elif session.phase is Phase.RUNNING:
            # Else it crossed the fault from which its Session will go on.
            session.mending = None
            positions = generation.next_reservation()
            if positions is not None:
                self._room.dispatch(session.route.ticket.hops[0], opening(session, positions))
            self._feed(session, (generation.decode_segment(),))

    def _feed(self, session: HeadSession, due: Iterable[Segment | ReplayBody]) -> None:
        hops = session.route.ticket.hops
        for one in due:
            if isinstance(one, ReplayBody):
                self._room.dispatch(hops[one.last_hop - 1], one)
            else:
                # The first Hop is this Worker: token ids, and no hidden states yet.
                header = ActivationsHeader((one,), hidden_size=0, dtype="float32")
                self._room.dispatch(hops[0], ActivationFrame(header, b""))

    def _leave_line(self, session: HeadSession) -> None:
        self._waiting.leave(session.generation.session_id)
        self._bell.ring()

    def _close_left(self, session: HeadSession) -> None:
        """Free what is left of it on Hops that its new Route does not need."""
        present = {hop.worker_id for hop in session.route.ticket.hops}
        for worker_id, (hop, body) in session.closes().items():
            if worker_id not in present:
                self._room.dispatch(hop, body)
        session.left.clear()

    def _close(self, session: HeadSession) -> None:
        if session.mending is not None or session.left:
            self._close_everywhere(session)
        elif session.phase is not Phase.WAITING:
            session.phase = Phase.WAITING
            # Its Route is whole and passes the news on.
            hop, body = session.closes()[session.route.ticket.hops[0].worker_id]
            self._room.dispatch(hop, body)

    def _close_everywhere(self, session: HeadSession) -> None:
        if session.phase is not Phase.WAITING:
            session.phase = Phase.WAITING
            self._driver.close_everywhere(session)

    def _end(self, session: HeadSession) -> None:
        if session.is_handed_over:
            session.phase = Phase.WAITING
            self._room.let_go(session.generation.session_id)
        elif session.generation.finished:
            self._close(session)
        else:
            # Who leaves early may have seen before us that some Hop is silent.
            self._close_everywhere(session)
