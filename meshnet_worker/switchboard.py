"""Where frames meet the rooms that understand them, and where answers find their way out.

A Hop's answer to its own Worker takes the same way as one to a Peer, without the wire.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple, assert_never

import structlog

from meshnet_common.errors import MeshnetError
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import (
    SEGMENT_PREFILL,
    ActivationFrame,
    Body,
    CloseBody,
    ErrorBody,
    OpenBody,
    OpenedBody,
    PingBody,
    PongBody,
    ProgressBody,
    ReplayBody,
    TokensBody,
)
from meshnet_common.protocol.messages import RouteHop
from meshnet_worker.admission import Admission
from meshnet_worker.head import Heads
from meshnet_worker.hops import Hops
from meshnet_worker.outgoing import sign_of_waiting
from meshnet_worker.senders import believed_tokens, may_close, may_have_passed_on, may_tell_head
from meshnet_worker.sessions import SessionTable
from meshnet_worker.tickets import TicketBook
from meshnet_worker.transport.links import LinkClass, Links
from meshnet_worker.transport.tasks import start_task

log = structlog.get_logger()


class Switchboard:
    """Joins links, Hops and Heads of one Worker."""

    def __init__(self, worker_id: WorkerId, tasks: asyncio.TaskGroup) -> None:
        self._worker_id = worker_id
        self._tasks = tasks
        self._rooms: Rooms | None = None

    def connect(self, rooms: "Rooms") -> None:
        """Tell the switchboard its rooms, which needed it to be made first."""
        self._rooms = rooms
        rooms.links.tell_who_waits(self._tell_who_waits)

    @property
    def rooms(self) -> "Rooms":
        assert self._rooms is not None
        return self._rooms

    def dispatch(self, hop: RouteHop, body: Body) -> None:
        """Send a body to a Hop, this Worker included; never waits."""
        if hop.worker_id == self._worker_id:
            # Later, not now: an answer must not run inside the call that caused it.
            asyncio.get_running_loop().call_soon(self.receive, self._worker_id, body)
        else:
            worker_id = WorkerId(hop.worker_id)
            self.rooms.links.send(worker_id, hop.url, _link_class(body), body)

    def receive(self, sender: WorkerId, body: Body) -> None:
        """Hand a body to the room that understands it, if its sender may say it; never waits."""
        match body:
            case ActivationFrame():
                self.rooms.hops.run(sender, body)
            case TokensBody() | OpenedBody() | ProgressBody():
                self._answer_head(sender, body)
            case OpenBody():
                start_task(self._tasks, self._open(sender, body))
            case CloseBody():
                # Later, not now: it must not overtake the opening right before it.
                asyncio.get_running_loop().call_soon(self._close, sender, body)
            case ErrorBody():
                self._on_error(sender, body)
            case ReplayBody():
                self.rooms.hops.replay(sender, body)
            case PingBody() | PongBody():
                # The links keep these to themselves.
                pass
            case _:
                assert_never(body)

    def _answer_head(self, sender: WorkerId, body: TokensBody | OpenedBody | ProgressBody) -> None:
        heads = self.rooms.heads
        match body:
            case TokensBody():
                trusts = sender == self._worker_id
                heads.on_tokens(body if trusts else believed_tokens(body, sender, heads.ticket_of))
            case OpenedBody():
                if self._may_tell_head(sender, body):
                    heads.on_opened(body)
            case ProgressBody():
                if self._may_tell_head(sender, body):
                    heads.on_progress(body)

    def _on_error(self, sender: WorkerId, body: ErrorBody) -> None:
        if self.rooms.heads.ticket_of(body.session_id) is not None:
            if self._may_tell_head(sender, body):
                self.rooms.heads.on_error(body)
        elif may_have_passed_on(self.rooms.sessions.find(body.session_id), sender):
            self.rooms.hops.pass_on(body)

    def _may_tell_head(self, sender: WorkerId, body: OpenedBody | ProgressBody | ErrorBody) -> bool:
        ticket = self.rooms.heads.ticket_of(body.session_id)
        if sender == self._worker_id or may_tell_head(ticket, sender, body):
            return True
        log.debug("not its to say", sender=sender, session=body.session_id, what=type(body))
        return False

    def _tell_who_waits(self, session_ids: Iterable[str]) -> None:
        """Give the Heads a sign of Sessions whose activations a slow link holds up."""
        for session_id in session_ids:
            session = self.rooms.sessions.find(session_id)
            if session is not None and session.outlet is None:
                self.dispatch(session.head, sign_of_waiting(session))

    def _close(self, sender: WorkerId, body: CloseBody) -> None:
        session = self.rooms.sessions.find(body.session_id)
        if sender == self._worker_id or may_close(session, sender):
            self.rooms.hops.close(body)
        else:
            log.debug("not its to close", sender=sender, session=body.session_id)

    async def _open(self, sender: WorkerId, body: OpenBody) -> None:
        try:
            ticket = (await self.rooms.tickets.verify(body.ticket)).of_choice(body.choice)
        except MeshnetError as error:
            # Also a Tracker that is away: it must cost no more than this opening.
            log.warning("session not opened", sender=sender, reason=str(error))
            return
        if not self.rooms.admission.may_open(ticket, body, sender):
            log.warning("session not opened", sender=sender, reason="the ticket names another Hop")
        elif body.sampling is None:
            self.rooms.admission.open(ticket, body)
        else:
            self.rooms.admission.arm(ticket, body)


class Rooms(NamedTuple):
    """Everything that a frame may reach on this Worker."""

    links: Links
    admission: Admission
    hops: Hops
    heads: Heads
    tickets: TicketBook
    sessions: SessionTable


def _link_class(body: Body) -> LinkClass:
    # By the flag, not by size: the last chunk of a prompt may be a single position.
    if isinstance(body, ActivationFrame) and body.header.segments[0].flags & SEGMENT_PREFILL:
        return LinkClass.BULK
    return LinkClass.INTERACTIVE
