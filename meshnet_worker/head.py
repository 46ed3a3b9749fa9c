"""A Head Worker's side of its Sessions: opens them, feeds them, hears their tokens.

The next Decode Step leaves as soon as a token has come back, before anybody reads it: text and
streaming never stand between two steps.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from meshnet_common.errors import MeshnetError
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
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.generation import Generation

OPEN_SECONDS = 10.0
SILENCE_SECONDS = 60.0
"""A Route that gives neither token nor progress for this long is a fault."""

Dispatch = Callable[[RouteHop, Body], None]


class HopFailedError(MeshnetError):
    """A Hop of the Route failed."""

    def __init__(self, code: str, message: str, worker_id: str) -> None:
        super().__init__(f"Worker {worker_id}: {message} ({code})")
        self.code = code


class RouteSilentError(MeshnetError):
    """The Route has gone silent."""


@dataclass(frozen=True, slots=True)
class SignedRoute:
    """A verified Route Ticket and the token that proves it to the next Hop."""

    ticket: RouteTicket
    token: str


@dataclass(slots=True)
class HeadSession:
    """One generation and those who wait for it."""

    route: SignedRoute
    generation: Generation
    sampling: Sampling
    opened: asyncio.Future[OpenedBody]
    news: asyncio.Queue[int | HopFailedError | None]
    """Tokens in order, None for progress, and at most one fault."""


class Heads:
    """The Sessions of which this Worker is the Head Worker."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._sessions: dict[str, HeadSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @asynccontextmanager
    async def generating(
        self, route: SignedRoute, generation: Generation, sampling: Sampling
    ) -> AsyncIterator[AsyncIterator[int]]:
        """Open a Session and yield its tokens; it is closed on every Hop with the block.

        Raises HopFailedError or RouteSilentError, here or from the tokens.
        """
        session = HeadSession(
            route=route,
            generation=generation,
            sampling=sampling,
            opened=asyncio.get_running_loop().create_future(),
            news=asyncio.Queue(len(generation.prompt_ids) + generation.max_new_tokens + 1),
        )
        self._sessions[generation.session_id] = session
        try:
            await self._open(session)
            yield self._tokens(session)
        finally:
            del self._sessions[generation.session_id]
            body = CloseBody(session_id=generation.session_id, epoch=generation.epoch)
            self._dispatch(route.ticket.hops[0], body)

    def on_opened(self, body: OpenedBody) -> None:
        session = self._sessions.get(body.session_id)
        if session is not None and not session.opened.done():
            session.opened.set_result(body)

    def on_tokens(self, body: TokensBody) -> None:
        for token in body.tokens:
            session = self._sessions.get(token.session_id)
            if session is not None:
                self._on_token(session, token)

    def on_progress(self, body: ProgressBody) -> None:
        session = self._sessions.get(body.session_id)
        if session is not None:
            self._feed(session, session.generation.on_progress(body))
            # One sign of life is enough: a Peer must not be able to fill the queue with them.
            if session.news.empty():
                session.news.put_nowait(None)

    def on_error(self, body: ErrorBody) -> bool:
        """Hear of a fault; returns whether the Session is one of this Head Worker's."""
        session = self._sessions.get(body.session_id)
        if session is None:
            return False
        error = HopFailedError(body.code, body.message, body.worker_id)
        if not session.opened.done():
            session.opened.set_exception(error)
        elif not session.news.full():
            session.news.put_nowait(error)
        return True

    async def _open(self, session: HeadSession) -> None:
        hops = session.route.ticket.hops
        positions = session.generation.next_reservation()
        assert positions is not None
        opening = OpenBody(ticket=session.route.token, max_positions=positions)
        drawing = OpenBody(
            ticket=session.route.token, max_positions=positions, sampling=session.sampling
        )
        self._dispatch(hops[-1], drawing)
        self._dispatch(hops[0], opening)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                opened = await session.opened
        except TimeoutError as error:
            raise RouteSilentError(f"Nobody opened it in {OPEN_SECONDS:.0f} seconds.") from error
        session.generation.credits = opened.credits

    async def _tokens(self, session: HeadSession) -> AsyncIterator[int]:
        self._feed(session, session.generation.prompt_segments())
        heard = 0
        while not (session.generation.finished and heard == len(session.generation.chosen)):
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    news = await session.news.get()
            except TimeoutError as error:
                facts = f"Neither token nor progress came for {SILENCE_SECONDS:.0f} seconds."
                raise RouteSilentError(facts) from error
            if isinstance(news, HopFailedError):
                raise news
            if news is not None:
                heard += 1
                yield news

    def _on_token(self, session: HeadSession, token: ChosenToken) -> None:
        generation = session.generation
        if not generation.on_token(token):
            return
        session.news.put_nowait(token.token_id)
        if generation.finished:
            return
        positions = generation.next_reservation()
        if positions is not None:
            opening = OpenBody(ticket=session.route.token, max_positions=positions)
            self._dispatch(session.route.ticket.hops[0], opening)
        self._feed(session, (generation.decode_segment(),))

    def _feed(self, session: HeadSession, segments: Iterable[Segment]) -> None:
        # The first Hop is this Worker: token ids, and no hidden states yet.
        for segment in segments:
            header = ActivationsHeader((segment,), hidden_size=0, dtype="float32")
            self._dispatch(session.route.ticket.hops[0], ActivationFrame(header, b""))
