"""A Head Worker's side of its Sessions: opens them, feeds them, hears their tokens.

The next Decode Step leaves as soon as a token has come back, before anybody reads it: text and
streaming never stand between two steps. A Session without KV waits for its turn and goes on where
it was; whoever reads its tokens sees only time.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from meshnet_common.edge.clock import Clock
from meshnet_common.errors import MeshnetError, TicketError
from meshnet_common.protocol.bodies import (
    ActivationFrame,
    ActivationsHeader,
    Body,
    ChosenToken,
    CloseBody,
    ErrorBody,
    OpenBody,
    OpenedBody,
    ProgressBody,
    Sampling,
    Segment,
    TokensBody,
)
from meshnet_common.protocol.messages import RouteHop
from meshnet_worker.generation import Generation
from meshnet_worker.head_session import HeadSession, HopFailedError, Phase
from meshnet_worker.requeue import goes_on
from meshnet_worker.tickets import SignedRoute
from meshnet_worker.waiting_room import GiveUp, Go, WaitingRoom, WaitUntil

SIGN_SECONDS = 5.0
"""Who waits for a Session's turn hears this often that it still waits."""

Dispatch = Callable[[RouteHop, Body], None]
Renew = Callable[[SignedRoute, frozenset[str]], Awaitable[SignedRoute]]
"""Fetches a fresh ticket for the same Session, on a Route that avoids some Workers if it can."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HeadRoom:
    """What a Head Worker works with: the way out, fresh Routes, and how long answers may wait."""

    dispatch: Dispatch
    renew: Renew
    clock: Clock
    wait_seconds: float


class Heads:
    """The Sessions of which this Worker is the Head Worker."""

    def __init__(self, room: HeadRoom) -> None:
        self._room = room
        self._sessions: dict[str, HeadSession] = {}
        self._waiting = WaitingRoom(room.wait_seconds)
        self._bell = _Bell()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def waiting(self) -> int:
        """Sessions that wait for KV."""
        return len(self._waiting)

    @asynccontextmanager
    async def generating(
        self, route: SignedRoute, generation: Generation, sampling: Sampling
    ) -> AsyncIterator[AsyncIterator[int | None]]:
        """Yield a Session's tokens, and None while it waits; it is closed with the block.

        The tokens raise HopFailedError, NoRoomError or RouteSilentError. Raises TicketError for a
        Session that is open already: two answers of one ticket would mix.
        """
        if generation.session_id in self._sessions:
            raise TicketError("Its Session is open already.")
        session = HeadSession(
            route=route,
            generation=generation,
            sampling=sampling,
            news=asyncio.Queue(generation.max_new_tokens + 3),
        )
        self._sessions[generation.session_id] = session
        self._waiting.arrive(route.ticket, _now())
        try:
            yield self._tokens(session)
        finally:
            del self._sessions[generation.session_id]
            self._leave_line(session)
            self._close(session)

    def on_opened(self, body: OpenedBody) -> None:
        session = self._sessions.get(body.session_id)
        if session is None or session.phase is not Phase.OPENING or body.epoch != session.opening:
            return
        session.phase = Phase.RUNNING
        session.generation.credits = body.credits
        if body.capacity:
            session.generation.capacity = body.capacity
        self._leave_line(session)
        self._feed(session, session.generation.prefill_segments())
        session.tell()

    def on_tokens(self, body: TokensBody) -> None:
        for token in body.tokens:
            session = self._sessions.get(token.session_id)
            if session is not None:
                self._on_token(session, token)

    def on_progress(self, body: ProgressBody) -> None:
        session = self._sessions.get(body.session_id)
        if session is not None and session.phase is Phase.RUNNING:
            self._feed(session, session.generation.on_progress(body))
            session.tell()

    def on_error(self, body: ErrorBody) -> bool:
        """Hear of a fault; returns whether the Session is one of this Head Worker's."""
        session = self._sessions.get(body.session_id)
        if session is None:
            return False
        if not session.is_hit_by(body):
            return True
        # At once, whatever the reader does: nothing that waits may hold KV.
        self._close(session)
        if goes_on(body, session.route.ticket, session.generation, self._waiting, _now()):
            session.goes_on_from(body)
        elif not session.news.full():
            session.news.put_nowait(HopFailedError(body))
        return True

    def on_freed(self) -> None:
        """KV was freed on this Worker."""
        if len(self._waiting):
            self._waiting.freed(_now())
            self._bell.ring()

    async def _tokens(self, session: HeadSession) -> AsyncIterator[int | None]:
        generation = session.generation
        heard = 0
        while not (generation.finished and heard == len(generation.chosen)):
            if session.phase is Phase.WAITING and session.news.empty():
                if await self._turn_comes(session):
                    await self._open(session)
                else:
                    yield None
                continue
            news = await session.next_news()
            if isinstance(news, MeshnetError):
                raise news
            if news is not None:
                heard += 1
                yield news

    async def _turn_comes(self, session: HeadSession) -> bool:
        """Wait for a Session's turn, but not long; raises NoRoomError when it has waited enough."""
        sign_due = _now() + SIGN_SECONDS
        while session.news.empty():
            match self._waiting.turn(session.generation.session_id, _now()):
                case Go():
                    return True
                case GiveUp(waited_seconds=seconds):
                    raise session.wait_error(seconds)
                case WaitUntil(moment=moment):
                    if _now() >= sign_due:
                        return False
                    await self._bell.wait(min(moment, sign_due) - _now())
        return False

    async def _open(self, session: HeadSession) -> None:
        generation = session.generation
        if session.opening is not None and not await self._start_anew(session):
            return
        session.opening = generation.epoch
        positions = generation.next_reservation()
        assert positions is not None
        session.phase = Phase.OPENING
        hops = session.route.ticket.hops
        self._room.dispatch(hops[-1], self._opening(session, positions, session.sampling))
        self._room.dispatch(hops[0], self._opening(session, positions))

    async def _start_anew(self, session: HeadSession) -> bool:
        """Take a fresh ticket, or the old one again while it is fresh; else the Session waits."""
        generation = session.generation
        try:
            session.route = await self._room.renew(session.route, session.refused_by)
        except MeshnetError as error:
            log.info("route not renewed", session=generation.session_id, reason=str(error))
            if self._room.clock.now() > session.route.ticket.expires_at:
                self._waiting.refused(session.route.ticket, _now())
                return False
        incarnation, rollback = generation.epoch
        fresh = (session.route.ticket.incarnation, 0)
        generation.restart(max(fresh, (incarnation, rollback + 1)))
        return True

    def _opening(
        self, session: HeadSession, positions: int, sampling: Sampling | None = None
    ) -> OpenBody:
        assert session.opening is not None
        return OpenBody(
            ticket=session.route.token,
            max_positions=positions,
            sampling=sampling,
            rollback=session.opening[1],
        )

    def _on_token(self, session: HeadSession, token: ChosenToken) -> None:
        generation = session.generation
        if not generation.on_token(token):
            return
        session.news.put_nowait(token.token_id)
        if session.phase is not Phase.RUNNING:
            # It crossed the fault from which its Session will go on.
            self._bell.ring()
            return
        if generation.finished:
            return
        positions = generation.next_reservation()
        if positions is not None:
            self._room.dispatch(session.route.ticket.hops[0], self._opening(session, positions))
        self._feed(session, (generation.decode_segment(),))

    def _feed(self, session: HeadSession, segments: Iterable[Segment]) -> None:
        # The first Hop is this Worker: token ids, and no hidden states yet.
        for segment in segments:
            header = ActivationsHeader((segment,), hidden_size=0, dtype="float32")
            self._room.dispatch(session.route.ticket.hops[0], ActivationFrame(header, b""))

    def _leave_line(self, session: HeadSession) -> None:
        self._waiting.leave(session.generation.session_id)
        self._bell.ring()

    def _close(self, session: HeadSession) -> None:
        if session.phase is not Phase.WAITING:
            session.phase = Phase.WAITING
            generation = session.generation
            body = CloseBody(session_id=generation.session_id, epoch=generation.epoch)
            self._room.dispatch(session.route.ticket.hops[0], body)


class _Bell:
    """Wakes all who wait, who then look for themselves."""

    def __init__(self) -> None:
        self._event: asyncio.Event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()
