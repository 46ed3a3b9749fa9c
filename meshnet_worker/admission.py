"""Opens Sessions on this Hop: checks, reserves KV, tells the next Hop; or refuses, and says why.

No Hop ever waits while it holds KV: that is how a ring of Hops deadlocks. A Session that was
admitted earlier takes what it needs from the ones admitted last, when it is opened as when it
grows; so the oldest always finishes.
"""

import structlog

from meshnet_common.errors import MeshnetError, TicketError
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import (
    CloseBody,
    Epoch,
    ErrorBody,
    KvFigures,
    OpenBody,
    OpenedBody,
)
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.engine_port import ArmSession, ExtendSession, OpenSession
from meshnet_worker.hop_room import HopRoom
from meshnet_worker.hops import KV_PREEMPTED, Hops
from meshnet_worker.kv_pool import KvCapacityError, KvExhaustedError, KvRequest
from meshnet_worker.sessions import Arms, HopSession, Outlet
from meshnet_worker.shards import DrainingError, LocalShard, NotServingError

CREDITS = 8
"""Segments of one Session that may be in flight: each Hop has memory for them."""

log = structlog.get_logger()

_REFUSALS: dict[type[MeshnetError], str] = {
    NotServingError: "not_serving",
    DrainingError: "draining",
    KvExhaustedError: "kv_exhausted",
    KvCapacityError: "kv_capacity",
    TicketError: "bad_ticket",
}


class Admission:
    """Admits Sessions to this Worker."""

    def __init__(self, room: HopRoom, hops: Hops) -> None:
        self._room = room
        self._hops = hops

    def may_open(self, ticket: RouteTicket, body: OpenBody, sender: WorkerId) -> bool:
        """Whether a Peer may say this: openings come down the Route, drawing from its head."""
        places = [i for i, hop in enumerate(ticket.hops) if hop.worker_id == self._room.worker_id]
        previous = max(0, places[0] - 1) if places and body.sampling is None else 0
        return sender == ticket.hops[previous].worker_id

    def open(self, ticket: RouteTicket, body: OpenBody, outlet: Outlet | None = None) -> None:
        """Reserve KV for a Session, or refuse; never wait. Told to the Head Worker either way."""
        try:
            session = self._opened(ticket, body, outlet)
        except (NotServingError, KvExhaustedError, TicketError) as error:
            self._refuse(ticket, body, error, outlet)
            return
        if session is None:
            return
        session.capacity = self._capacity(session, body)
        session.held_before, session.kept_before = body.held, body.kept
        if session.following is not None and outlet is None:
            kept = self._room.kept.until(session.engine_session)
            self._room.dispatch(session.following, _onward(session, body, kept))
            return
        self._arm(session, _arms(body))
        self._arm(session, self._room.sessions.armed(ticket.session_id, session.opening))
        if session.sampling is not None or outlet is not None:
            self._welcome(session)

    def arm(self, ticket: RouteTicket, body: OpenBody) -> None:
        """Learn from the Head Worker how to draw; it may come before or after the opening."""
        arms = _arms(body)
        assert arms is not None
        session, opening = self._room.sessions.find(ticket.session_id), _epoch(ticket, body)
        if session is None or session.opening < opening:
            now = self._room.steady.now()
            self._room.sessions.arm(ticket.session_id, arms, opening, now)
        elif session.opening == opening:
            self._arm(session, arms)
            self._welcome(session)

    def _arm(self, session: HopSession, arms: Arms | None) -> None:
        # Once for each opening: from then on the engine counts the answer itself.
        if arms is None or session.sampling is not None:
            return
        session.sampling = arms.sampling
        command = ArmSession(session.engine_session, session.opening, arms.sampling, arms.history)
        self._room.send(command, b"")

    def _opened(
        self, ticket: RouteTicket, body: OpenBody, outlet: Outlet | None
    ) -> HopSession | None:
        """Open a Session, open it again or let it grow; None for an opening that is stale."""
        session = self._room.sessions.find(ticket.session_id)
        if session is None:
            return self._new(ticket, body, outlet)
        if _epoch(ticket, body) > session.opening:
            return self._open_again(session, ticket, body, outlet)
        if _epoch(ticket, body) < session.opening:
            return None
        if outlet is not None and session.outlet is None:
            raise TicketError("Its Session is open on its Route.")
        session.outlet = outlet or session.outlet
        if body.max_positions > session.max_positions:
            self._extend(session, body.max_positions)
        return session

    def _open_again(
        self, session: HopSession, ticket: RouteTicket, body: OpenBody, outlet: Outlet | None
    ) -> HopSession:
        """Take a Session over into its mended Route, with what it holds if its Layers are the same.

        Its closing may also still be on its way here, perhaps down another Route.
        """
        place = self._place(ticket)
        shard = self._room.shards.serving(ticket, ticket.hops[place].shard_range)
        if ticket != session.ticket:
            # One that is running goes on, however long ago it was admitted.
            ticket.check_fresh(self._room.clock.now())
        is_elsewhere = outlet is not None or session.outlet is not None
        if is_elsewhere or not _has_same_layers(session, ticket, place):
            self._hops.close(CloseBody(session_id=session.session_id, epoch=session.epoch))
            return self._new(ticket, body, outlet)
        session.ticket, session.place, session.is_orphan = ticket, place, False
        session.opening = session.epoch = _epoch(ticket, body)
        session.sampling = None
        session.row_bytes = shard.row_bytes if place else 0
        session.last_heard = self._room.steady.now()
        if body.max_positions > session.max_positions:
            self._extend(session, body.max_positions)
        return session

    def _new(self, ticket: RouteTicket, body: OpenBody, outlet: Outlet | None) -> HopSession:
        room = self._room
        place = self._place(ticket)
        shard = room.shards.serving(ticket, ticket.hops[place].shard_range)
        ticket.check_fresh(room.clock.now())
        _check_limit(ticket, body.max_positions)
        if room.sessions.is_buried(ticket.session_id, _epoch(ticket, body)):
            raise TicketError("Its Session was closed.")
        session = HopSession(
            ticket=ticket,
            place=place,
            engine_session=room.sessions.new_engine_session(),
            wire_dtype=shard.variant.wire_dtype,
            row_bytes=shard.row_bytes if place else 0,
            max_positions=body.max_positions,
            opening=_epoch(ticket, body),
            epoch=_epoch(ticket, body),
            last_heard=room.steady.now(),
            outlet=outlet,
        )
        self._reserve(session, shard, body.max_positions)
        room.sessions.add(session)
        layers = session.hop.shard_range
        number = session.engine_session
        command = OpenSession(number, shard.number, layers.start, layers.end, body.max_positions)
        room.send(command, b"")
        return session

    def _extend(self, session: HopSession, positions: int) -> None:
        # Not `serving`: a running Session goes on while its Layers drain.
        shard = self._room.shards.find(session.ticket.model, session.ticket.quantization)
        if shard is None:
            raise NotServingError
        _check_limit(session.ticket, positions)
        self._reserve(session, shard, positions)
        session.max_positions = positions
        self._room.send(ExtendSession(session.engine_session, positions), b"")

    def _place(self, ticket: RouteTicket) -> int:
        places = [i for i, hop in enumerate(ticket.hops) if hop.worker_id == self._room.worker_id]
        if len(places) != 1:
            raise TicketError(f"This Worker is {len(places)} Hops of its Route, not one.")
        return places[0]

    def _reserve(self, session: HopSession, shard: LocalShard, positions: int) -> None:
        request = KvRequest(
            session=session.engine_session,
            shard=shard.number,
            layers=session.hop.shard_range,
            positions=positions,
            order=session.ticket.order,
        )
        victims = [self._hops.preempt(victim) for victim in self._room.kv.victims(request)]
        self._room.kv.reserve(request)
        # Only now: who hears of free blocks may make the pool smaller.
        for victim in victims:
            if victim is not None:
                self._room.on_freed(victim)

    def _capacity(self, session: HopSession, body: OpenBody) -> int:
        shard = self._room.shards.find(session.ticket.model, session.ticket.quantization)
        pool = self._room.kv.pools.get(shard.number) if shard else None
        own = pool.capacity if pool else session.max_positions
        return min(own, body.capacity) if body.capacity else own

    def _welcome(self, session: HopSession) -> None:
        body = OpenedBody(
            session_id=session.session_id,
            epoch=session.opening,
            held=(*session.held_before, session.held),
            credits=CREDITS,
            kept=(*session.kept_before, 0),
            capacity=session.capacity,
        )
        if session.outlet is not None:
            session.outlet(body)
        else:
            self._room.dispatch(session.head, body)

    def _refuse(
        self, ticket: RouteTicket, body: OpenBody, error: MeshnetError, outlet: Outlet | None
    ) -> None:
        session = self._room.sessions.find(ticket.session_id)
        code = _REFUSALS[type(error)]
        refusal = ErrorBody(
            session_id=ticket.session_id,
            code=code,
            message=str(error),
            worker_id=self._room.worker_id,
            epoch=_epoch(ticket, body),
            kv=_figures(error),
        )
        # Want of KV is daily life in a busy Mesh; `GET /v1/kv` shows it.
        say = log.debug if refusal.kv else log.info
        say("session refused", session=ticket.session_id, code=code, reason=str(error))
        if outlet is not None:
            outlet(refusal)
        elif session is not None and refusal.epoch == session.opening:
            # It is itself the one admitted last, of those whose blocks would help.
            code = KV_PREEMPTED if code == "kv_exhausted" else code
            self._hops.fail(session, code, str(error), refusal.kv)
        else:
            self._room.dispatch(ticket.hops[0], refusal)


def _arms(body: OpenBody) -> Arms | None:
    return Arms(body.sampling, body.history) if body.sampling is not None else None


def _epoch(ticket: RouteTicket, body: OpenBody) -> Epoch:
    return ticket.incarnation, body.rollback


def _has_same_layers(session: HopSession, ticket: RouteTicket, place: int) -> bool:
    before = session.ticket
    return (ticket.variant_digest, ticket.model, ticket.quantization) == (
        before.variant_digest,
        before.model,
        before.quantization,
    ) and ticket.hops[place].shard_range == session.hop.shard_range


def _check_limit(ticket: RouteTicket, positions: int) -> None:
    if ticket.max_positions and positions > ticket.max_positions:
        raise TicketError(f"It allows {ticket.max_positions} positions, not {positions}.")


def _onward(session: HopSession, body: OpenBody, kept: int) -> OpenBody:
    return OpenBody(
        ticket=body.ticket,
        choice=body.choice,
        max_positions=body.max_positions,
        held=(*body.held, session.held),
        kept=(*body.kept, kept),
        rollback=body.rollback,
        capacity=session.capacity,
    )


def _figures(error: MeshnetError) -> KvFigures | None:
    return error.figures if isinstance(error, KvExhaustedError) else None
