"""Drives one Session of a Head Worker to its end: opens it, watches it, mends its Route.

Decode Steps need no driver: each leaves as soon as the token before it has come. Who waits for a
Route or for KV holds nothing on any Hop; who mends keeps what survives.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from meshnet_common.edge.clock import Clock, loop_time
from meshnet_common.errors import MeshnetError
from meshnet_common.openai.errors import ApiError
from meshnet_common.protocol.bodies import Body, ErrorBody, OpenBody
from meshnet_common.protocol.messages import HopFault, RouteHop
from meshnet_common.protocol.sampling import History, Sampling
from meshnet_worker.generation import Generation
from meshnet_worker.head_session import (
    OPEN_SECONDS,
    SILENCE_SECONDS,
    HeadSession,
    Mending,
    Phase,
    RouteSilentError,
)
from meshnet_worker.tickets import SignedRoute
from meshnet_worker.waiting_room import GiveUp, Go, WaitingRoom, WaitUntil

SERVER_FAULTS = 500
"""From this status on the Tracker may answer otherwise later."""
NO_ROUTE = "model_unavailable"
"""The Tracker's code where Layers are missing."""

Dispatch = Callable[[RouteHop, Body], None]
Renew = Callable[[SignedRoute, frozenset[str], tuple[HopFault, ...]], Awaitable[SignedRoute]]
"""Fetches a fresh ticket for the same Session, on a Route around Workers that have refused it and
around faulty ones."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HeadRoom:
    """What a Head Worker works with: the way out, fresh Routes, and how long answers may wait."""

    dispatch: Dispatch
    renew: Renew
    clock: Clock
    wait_seconds: float
    start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Starts a task beside the daemon's others."""
    let_go: Callable[[str], None] = lambda _session_id: None
    """Frees a Session on this Worker's own Hop, and on no other."""
    is_stuck: Callable[[], bool] = bool
    """Whether this Worker's own engine is overdue, so that nothing of it is a sign of life."""
    mend_seconds: float = 30.0
    """A Session that got no token for so long while it was mended is given up."""


class HeadDriver:
    """Drives Sessions, each by a task of its own."""

    def __init__(self, room: HeadRoom, waiting: WaitingRoom, bell: "Bell") -> None:
        self._room = room
        self._waiting = waiting
        self._bell = bell

    async def drive(self, session: HeadSession) -> None:
        """Drive a Session until its generation is finished; a failure becomes its last news."""
        try:
            await self._drive(session)
        except MeshnetError as error:
            session.report(error)
        except Exception:
            # A fault of ours must cost this Session only.
            log.exception("session given up", session=session.generation.session_id)
            session.report(RouteSilentError("Its Head Worker has failed."))

    async def _drive(self, session: HeadSession) -> None:
        while not session.generation.finished:
            match session.phase:
                case Phase.WAITING:
                    await self._turn_comes(session)
                    await self._start(session)
                case Phase.MENDING:
                    await self._mend(session)
                case Phase.OPENING | Phase.RUNNING:
                    await self._watch(session)

    async def _turn_comes(self, session: HeadSession) -> None:
        """Wait for a Session's turn; raises NoRoomError when it has waited enough."""
        while True:
            match self._waiting.turn(session.generation.session_id, loop_time()):
                case Go():
                    return
                case GiveUp() if session.is_held_up_by_its_answer:
                    self._waiting.be_patient(session.generation.session_id, loop_time())
                case GiveUp(waited_seconds=seconds):
                    raise session.wait_error(seconds)
                case WaitUntil(moment=moment):
                    await self._bell.wait(moment - loop_time())

    async def _start(self, session: HeadSession) -> None:
        """Open it for the first time, or again under a fresh ticket after it held nothing."""
        if session.opening is None:
            self._open(session)
            return
        fresh: SignedRoute | None = None
        try:
            fresh = await self._room.renew(session.route, session.refused_by, ())
        except MeshnetError as error:
            _raise_if_final(error)
            log.info("route not renewed", session=session.generation.session_id, reason=str(error))
            if not self._is_fresh(session.route):
                self._waiting.refused(session.route.ticket, loop_time())
                return
        self._open_again(session, fresh or session.route)

    async def _watch(self, session: HeadSession) -> None:
        """Wait until something changes; silence for too long is a fault that names nobody."""
        if session.moving is not None:
            await self._move(session, session.moving)
            return
        limit = OPEN_SECONDS if session.phase is Phase.OPENING else SILENCE_SECONDS
        session.changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(session.heard_at + limit):
                await session.changed.wait()
        if loop_time() >= session.heard_at + limit and not session.generation.finished:
            what = "Nobody opened it" if session.phase is Phase.OPENING else "Nothing came of it"
            session.is_hurt(_silence(session, f"{what} for {limit:.0f} seconds."), loop_time())

    async def _mend(self, session: HeadSession) -> None:
        """Find a Route around what has failed; raises what ends the Session."""
        assert session.mending is not None
        mending = session.mending
        is_late = mending.tries and loop_time() >= mending.since + self._room.mend_seconds
        if is_late or mending.is_poison:
            raise mending.error
        await asyncio.sleep(mending.back_off_seconds)
        mending.tries += 1
        fresh = await self._fresh_route(session, mending)
        is_wanted = session.phase is Phase.MENDING and not session.generation.finished
        if fresh is not None and is_wanted:
            log.info(
                "route mended",
                session=session.generation.session_id,
                faults=[f"{fault.worker_id} {fault.code}" for fault in mending.faults],
                hops=[hop.worker_id for hop in fresh.ticket.hops],
            )
            self._open_again(session, fresh)

    async def _fresh_route(self, session: HeadSession, mending: Mending) -> SignedRoute | None:
        """A Route to open it on; None if there is none now."""
        try:
            fresh = await self._room.renew(session.route, session.refused_by, session.hop_faults)
        except MeshnetError as error:
            _raise_if_final(error)
            log.info("route not renewed", session=session.generation.session_id, reason=str(error))
            mending.refusal = error
            if isinstance(error, ApiError) and error.body.code == NO_ROUTE:
                # Who waits for a Route must not hold KV that others wait for.
                self.close_everywhere(session)
                return None
            # Without a Tracker the same Hops once more: perhaps only a link was lost.
            return session.route
        mending.refusal = None
        return fresh

    async def _move(self, session: HeadSession, draining: ErrorBody) -> None:
        """Lead a running Session around a Hop that drains, if there is a way."""
        fault = HopFault(worker_id=draining.worker_id, code=draining.code)
        try:
            fresh = await self._room.renew(session.route, session.refused_by, (fault,))
        except MeshnetError as error:
            log.info("session stays", session=session.generation.session_id, reason=str(error))
            return
        finally:
            session.moving = None
        is_around = all(hop.worker_id != draining.worker_id for hop in fresh.ticket.hops)
        if is_around and session.phase is Phase.RUNNING and not session.generation.finished:
            self._open_again(session, fresh)

    def _is_fresh(self, route: SignedRoute) -> bool:
        return self._room.clock.now() <= route.ticket.expires_at

    def _open_again(self, session: HeadSession, fresh: SignedRoute) -> None:
        generation = session.generation
        session.left.update(
            {hop.worker_id: (hop, generation.epoch) for hop in session.route.ticket.hops}
        )
        session.route = fresh
        incarnation, rollback = generation.epoch
        generation.restart(max((fresh.ticket.incarnation, 0), (incarnation, rollback + 1)))
        self._open(session)

    def _open(self, session: HeadSession) -> None:
        session.opening = session.generation.epoch
        positions = session.generation.next_reservation()
        assert positions is not None
        session.phase, session.heard_at = Phase.OPENING, loop_time()
        hops = session.route.ticket.hops
        self._room.dispatch(hops[-1], opening(session, positions, session.sampling))
        self._room.dispatch(hops[0], opening(session, positions))

    def close_everywhere(self, session: HeadSession) -> None:
        """Free it on every Hop, without trusting the Route to pass it on."""
        for hop, body in session.closes().values():
            self._room.dispatch(hop, body)
        session.left.clear()


def _raise_if_final(error: MeshnetError) -> None:
    """Raise what the Tracker will not answer otherwise later, such as that a Head was replaced."""
    if isinstance(error, ApiError) and error.status < SERVER_FAULTS:
        raise error


def opening(session: HeadSession, positions: int, sampling: Sampling | None = None) -> OpenBody:
    """What opens a Session on its Hops, or lets it grow there."""
    assert session.opening is not None
    return OpenBody(
        ticket=session.route.token,
        choice=session.route.ticket.choice,
        max_positions=positions,
        sampling=sampling,
        history=_history(session.generation, sampling) if sampling else None,
        rollback=session.opening[1],
    )


def _history(generation: Generation, sampling: Sampling) -> History | None:
    """What draws depend on; whoever draws on in the middle of an answer knows no more than this."""
    if not sampling.uses_answer:
        return None
    return History(
        answer_start=len(generation.prompt_ids),
        answer_ids=tuple(generation.chosen),
        prompt_ids=generation.prompt_ids if sampling.uses_prompt else (),
    )


class Bell:
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


def _silence(session: HeadSession, message: str) -> ErrorBody:
    return ErrorBody(
        session_id=session.generation.session_id, code="silent", message=message, worker_id=""
    )
