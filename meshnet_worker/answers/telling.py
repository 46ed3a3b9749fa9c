"""Tells an answer to the Tracker that asked for it, so that another Head Worker can go on with it.

The stream is open before the prompt is read and never silent for long while this Worker is well:
by silence the Tracker knows one that is not. What goes wrong from then on is told in the stream,
with the status that it has.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import structlog
from aiohttp import web

from meshnet_common.edge.http import open_event_stream, request_id, started_response
from meshnet_common.errors import MeshnetError, TicketError
from meshnet_common.openai.sse import DONE_EVENT
from meshnet_common.protocol.sampling import TokenLogprobs
from meshnet_worker.answers.answer import Answer
from meshnet_worker.answers.events import (
    FELLED,
    MOVED,
    StreamEvents,
    WholeEvents,
    alive,
    named,
    noted_failure,
)
from meshnet_worker.answers.failing import told_error
from meshnet_worker.head import Heads
from meshnet_worker.head_session import BlamedError

ALIVE_SECONDS = 1.0
REPLACED_SECONDS = 5.0
"""How long an answer may take to make room for its own next incarnation."""

Events = StreamEvents | WholeEvents
Drawn = tuple[int, int, TokenLogprobs | None]
"""A token: of which choice, which one, and how likely it was if that is to be told."""
Tokens = AsyncGenerator[Drawn | None, None]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ToldSessions:
    """The Sessions of an answer, one for each choice."""

    heads: Heads
    ids: Sequence[str]

    def hand_over(self) -> None:
        """Leave what the other Hops hold of it to its next Head Worker."""
        for session_id in self.ids:
            self.heads.hand_over(session_id)

    @property
    def are_felled(self) -> bool:
        """Whether it stands still since this Worker's engine was lost."""
        return any(map(self.heads.is_felled, self.ids))

    @property
    def ahead(self) -> int:
        """How many Sessions of others wait before it; 0 if it waits no more."""
        return self.heads.ahead(self.ids[0])


class Telling:
    """One answer on its way to a Tracker."""

    def __init__(self, request: web.Request, incarnation: int, sessions: ToldSessions) -> None:
        self._request = request
        self.incarnation = incarnation
        self._sessions = sessions
        self.moves = False
        """Whether it goes on elsewhere from its next sign of life."""
        self._patience = asyncio.timeout(None)
        self._gone = asyncio.Event()

    async def tell(
        self, begin: Callable[[], Events], tokens: Callable[[Answer], Tokens]
    ) -> web.StreamResponse:
        """Stream the answer to its end, to its failure, or until it moves."""
        try:
            async with self._patience:
                return await self._tell(begin, tokens)
        except TimeoutError:
            if not self._patience.expired():
                raise
            return self._hang_up()
        finally:
            self._gone.set()

    async def end(self) -> None:
        """End it, since its next incarnation is here, and wait until it has; raises TicketError."""
        if not self._gone.is_set():
            self._sessions.hand_over()
            self._patience.reschedule(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(REPLACED_SECONDS):
                await self._gone.wait()
        except TimeoutError as error:
            raise TicketError("Its Session is open already.") from error

    async def _tell(
        self, begin: Callable[[], Events], tokens: Callable[[Answer], Tokens]
    ) -> web.StreamResponse:
        response = await open_event_stream(self._request)
        answer: Answer | None = None
        try:
            events = await _alive_until_begun(response, begin)
            answer = events.answer
            await response.write(named(answer))
            if answer.is_over or await self._stream(response, events, tokens(answer)):
                for event in events.ending():
                    await response.write(event)
                await response.write(DONE_EVENT)
        except MeshnetError as error:
            is_blamed = isinstance(error, BlamedError)
            told = noted_failure(told_error(error, answer), answer, is_blamed=is_blamed)
            await response.write(told)
        await response.write_eof()
        return response

    async def _stream(self, response: web.StreamResponse, events: Events, tokens: Tokens) -> bool:
        """Write what the tokens say; False if the answer has moved before their end."""
        async with aclosing(tokens):
            async for drawn in tokens:
                told = alive(self._sessions.ahead) if drawn is None else events.token(*drawn)
                await response.write(told)
                if self.moves and not events.answer.is_over:
                    self._sessions.hand_over()
                    await response.write(FELLED if self._sessions.are_felled else MOVED)
                    return False
        return True

    def _hang_up(self) -> web.StreamResponse:
        """Leave a Tracker that has gone on elsewhere, without waiting for it to read."""
        log.info("answer replaced by its next incarnation", request_id=request_id(self._request))
        if self._request.transport is not None:
            self._request.transport.abort()
        return started_response(self._request) or web.Response(status=503)


async def _alive_until_begun(response: web.StreamResponse, begin: Callable[[], Events]) -> Events:
    # A long prompt takes a while, in which every other stream would stand still: hence the thread.
    begun = asyncio.get_running_loop().run_in_executor(None, begin)
    try:
        while not begun.done():
            await asyncio.wait((begun,), timeout=ALIVE_SECONDS)
            if not begun.done():
                await response.write(alive())
    except BaseException:
        begun.cancel()
        raise
    return begun.result()
