"""Who may go now: every request gets a place at an Endpoint, or waits for one in its line.

A place is begun when it is granted, so that nobody overtakes, and ended by the one context manager
that gives it, whatever happens inside.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

from meshnet_common.edge.clock import Clock
from meshnet_common.errors import MeshnetError
from meshnet_common.openai.errors import overloaded
from meshnet_gateway.limits.breaker import Attempt
from meshnet_gateway.limits.waiting import Place, WaitingLines
from meshnet_gateway.serving.endpoint_state import EndpointState, Outcome
from meshnet_gateway.serving.served_model import ServedModel

RETRY_AFTER_SECONDS = 5
LOOK_SECONDS = 0.25
"""While anybody waits, breakers are looked at this often: they let through as time goes by."""

FIRST, NEXT = 1, 0
"""Priorities: who has had a place and lost it through no fault of its own goes first."""


class NoPlaceError(MeshnetError):
    """No place became free in time."""


@dataclass(slots=True)
class Turn:
    """One request's wish for a place; it may have several, one after the other."""

    served: ServedModel
    deadline: float
    """By the event loop's time."""
    key: str = ""
    priority: int = FIRST
    barred: frozenset[str] = frozenset()
    """Base URLs of Endpoints where it must not go."""
    place: Place | None = None


@dataclass(slots=True)
class Lease:
    """A place at an Endpoint; whoever has it says how it went."""

    turn: Turn
    state: EndpointState
    attempt: Attempt
    outcome: Outcome = Outcome.UNSAID
    has_answered: bool = False


@dataclass(slots=True)
class Admission:
    """All lines of this Gateway."""

    clock: Clock
    max_waiting: int
    lines: WaitingLines = field(default_factory=WaitingLines)
    _waiters: dict[Place, tuple[Turn, asyncio.Future[Lease | None]]] = field(default_factory=dict)
    _served: dict[str, ServedModel] = field(default_factory=dict)
    _turns: "count[int]" = field(default_factory=lambda: count(1))
    _looking: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def lease(self, turn: Turn) -> AsyncIterator[Lease | None]:
        """Lend a place; None for a request that has to look again where it may go.

        Raises ApiError 503 where too many wait, and NoPlaceError when its deadline has passed.
        """
        lease = await self._granted(turn)
        try:
            yield lease
        finally:
            if lease is not None:
                self._end(lease)

    def ahead(self, turn: Turn) -> int:
        """Count the requests that must go first, with one that must end where something runs."""
        if turn.place is None:
            return 0
        return self.lines.ahead(turn.place) + turn.served.is_busy

    def pump(self) -> None:
        """Let go all who may; to be called when there may be more room than before."""
        now = self.clock.now()
        while place := self.lines.next_to_go(lambda name: self._served[name].may_take(now)):
            turn, granted = self._waiters[place]
            self._leave(place)
            if not granted.done():
                granted.set_result(self._take(turn))
        if self._waiters and self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(LOOK_SECONDS, self._look)

    def turn_away(self, served: ServedModel) -> None:
        """Let all who wait for a model look again where to go."""
        for place in [place for place in self._waiters if place.model == served.capacity_key]:
            _, granted = self._waiters[place]
            self._leave(place)
            if not granted.done():
                granted.set_result(None)

    def turn_away_lost(self) -> None:
        """Let all look again who wait for a model that has no Endpoints any more."""
        for served in [served for served in self._served.values() if not any(served)]:
            self.turn_away(served)

    def answered(self, lease: Lease) -> None:
        """Hear that an answer has begun: where one comes, others may go."""
        if not lease.has_answered:
            lease.has_answered = True
            lease.state.answered(lease.attempt, self.clock.now())
            self.pump()

    def _look(self) -> None:
        self._looking = None
        self.pump()

    async def _granted(self, turn: Turn) -> Lease | None:
        served = turn.served
        may_go = not self.lines.waiting(served.capacity_key) and served.may_take(self.clock.now())
        if may_go:
            return self._take(turn)
        # Who has had a place is not sent away for those that came later.
        if turn.priority == FIRST and self.lines.total >= self.max_waiting:
            raise overloaded("Too many requests wait already.", RETRY_AFTER_SECONDS)
        return await self._waited(turn)

    async def _waited(self, turn: Turn) -> Lease | None:
        served = turn.served
        granted: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()
        place = turn.place = self.lines.join(served.capacity_key, turn.priority)
        self._waiters[place] = turn, granted
        self._served[served.capacity_key] = served
        try:
            self.pump()
            async with asyncio.timeout_at(turn.deadline):
                return await granted
        except BaseException as error:
            if granted.done() and not granted.cancelled() and (lease := granted.result()):
                self._end(lease)
            if isinstance(error, TimeoutError):
                raise NoPlaceError from error
            raise
        finally:
            turn.place = None
            self._leave(place)

    def _take(self, turn: Turn) -> Lease | None:
        now = self.clock.now()
        state = turn.served.choose(turn.key, turn.barred, now)
        if state is None:
            return None
        return Lease(turn, state, state.begin(next(self._turns), now))

    def _end(self, lease: Lease) -> None:
        now = self.clock.now()
        others = lease.turn.served.takers(now, besides=lease.state)
        if lease.outcome is Outcome.SUCCEEDED:
            self.answered(lease)
        lease.state.end(lease.attempt, lease.outcome, now, others)
        self.pump()

    def _leave(self, place: Place) -> None:
        self.lines.leave(place)
        self._waiters.pop(place, None)
        if not self.lines.waiting(place.model):
            self._served.pop(place.model, None)
