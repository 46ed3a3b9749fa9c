"""`POST /forward`: one frame in the body, the resulting frame in the answer.

The same codec and rules as on a link, for tests, curl and Peers without links. A Session opened
here answers here: nothing of it goes down the Route, and no Session that runs on its Route is
touched from here.
"""

import asyncio

from aiohttp import web

from meshnet_common.errors import ProtocolError, TicketError
from meshnet_common.ids import WorkerId
from meshnet_common.openai.errors import (
    ApiError,
    invalid_request,
    unsupported_media_type,
    upstream_failed,
)
from meshnet_common.openai.errors import ErrorBody as ErrorShape
from meshnet_common.protocol.bodies import (
    ActivationFrame,
    Body,
    CloseBody,
    ErrorBody,
    OpenBody,
    from_frame,
    to_frame,
)
from meshnet_common.protocol.frames import decode_frame, encode_frame
from meshnet_worker.admission import Admission
from meshnet_worker.hops import Hops
from meshnet_worker.sessions import HopSession, Outlet, SessionTable, UnknownSessionError
from meshnet_worker.tickets import TicketBook
from meshnet_worker.transport.links import MAX_MESSAGE_BYTES

CONTENT_TYPE = "application/x-meshnet-frame"
ANSWER_SECONDS = 60.0

_STATUSES = {
    "bad_ticket": 403,
    "bad_segment": 400,
    "draining": 503,
    "kv_capacity": 503,
    "kv_exhausted": 503,
    "kv_preempted": 503,
    "not_serving": 503,
}


class Forwarding:
    """Answers `POST /forward`."""

    def __init__(
        self, admission: Admission, hops: Hops, sessions: SessionTable, tickets: TicketBook
    ) -> None:
        self._admission = admission
        self._hops = hops
        self._sessions = sessions
        self._tickets = tickets
        self._running: set[str] = set()

    async def forward(self, request: web.Request) -> web.Response:
        """Run one frame; raises ProtocolError, TicketError, UnknownSessionError or ApiError."""
        if request.content_type != CONTENT_TYPE:
            raise unsupported_media_type(f"A frame is sent as {CONTENT_TYPE}.")
        # The codec has limits of its own, above those of a JSON body.
        whole = request.clone(client_max_size=MAX_MESSAGE_BYTES)
        body = from_frame(decode_frame(await whole.read()))
        answer = await self._answer(body)
        if isinstance(answer, ErrorBody):
            status = _STATUSES.get(answer.code, 502)
            raise ApiError(status, ErrorShape(answer.message, "server_error", None, answer.code))
        return web.Response(body=encode_frame(to_frame(answer)), content_type=CONTENT_TYPE)

    async def _answer(self, body: Body) -> Body:
        match body:
            case OpenBody():
                return await self._open(body)
            case ActivationFrame():
                return await self._run(body)
            case CloseBody():
                return self._close(body)
            case _:
                raise ProtocolError("Only open, activations and close are forwarded.")

    async def _open(self, body: OpenBody) -> Body:
        ticket = (await self._tickets.verify(body.ticket)).of_choice(body.choice)
        session = self._sessions.find(ticket.session_id)
        if session is not None and session.outlet is None:
            raise _runs_on_its_route()
        if body.rollback > (session.opening[1] + 1 if session else 0):
            # It would fence openings that come down the Route.
            raise TicketError("There is nothing of its Session here to roll back.")
        answer, outlet = _outlet()
        self._admission.open(ticket, body, outlet)
        return await _wait(answer)

    def _close(self, body: CloseBody) -> Body:
        session = self._own(body.session_id)
        # Not beyond its own epoch: a later opening is not this caller's to forbid.
        epoch = min(body.epoch, session.epoch)
        self._hops.close(CloseBody(session_id=body.session_id, epoch=epoch))
        return body

    def _own(self, session_id: str) -> HopSession:
        """A Session that was opened here; raises UnknownSessionError or TicketError."""
        session = self._sessions.find(session_id)
        if session is None:
            raise UnknownSessionError(f"{session_id!r} was not opened by /forward.")
        if session.outlet is None:
            raise _runs_on_its_route()
        return session

    async def _run(self, frame: ActivationFrame) -> Body:
        if len(frame.header.segments) != 1:
            raise ProtocolError("A forwarded frame has exactly one segment.")
        segment = frame.header.segments[0]
        session = self._own(segment.session_id)
        if segment.session_id in self._running:
            raise invalid_request("The Session's last segment is still running.", "session_id")
        self._running.add(segment.session_id)
        try:
            answer, session.outlet = _outlet()
            if not self._hops.run(WorkerId(session.hop.worker_id), frame):
                raise invalid_request("The segment is stale or was already run.", "start")
            return await _wait(answer)
        finally:
            self._running.discard(segment.session_id)


def _runs_on_its_route() -> TicketError:
    return TicketError("Its Session is open on its Route.")


def _outlet() -> tuple[asyncio.Future[Body], Outlet]:
    answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()

    def give(body: Body) -> None:
        if not answer.done():
            answer.set_result(body)

    return answer, give


async def _wait(answer: asyncio.Future[Body]) -> Body:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await answer
    except TimeoutError as error:
        raise upstream_failed("The engine gave no answer in time.") from error
