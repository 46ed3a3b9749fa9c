"""Finds an answer's next Head Worker, and waits where one is about to be there.

The first Route is a Session of its own. Once a Head Worker may have opened that, the same Session
goes on under another one, so that what the other Hops hold of it is kept.
"""

import asyncio
from contextlib import ExitStack, suppress

from meshnet_common.edge.clock import loop_time
from meshnet_common.errors import MeshnetError, TicketError
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import HopFault, RouteAnswer
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.admission import Admission, RouteWish
from meshnet_tracker.answer_times import AnswerTimes, Doing
from meshnet_tracker.models import ServedModel, UnknownModelError, unavailable
from meshnet_tracker.planning.routes import NoRouteError
from meshnet_tracker.services import Services
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.tries import HeadTries


class NoHeadError(MeshnetError):
    """No Head Worker could answer the request."""

    def __init__(
        self,
        detail: str = "",
        *,
        missing: tuple[ShardRange, ...] = (),
        is_refused: bool = False,
    ) -> None:
        super().__init__(detail)
        self.missing = missing
        self.is_refused = is_refused
        """Whether it is for what the Head Workers themselves have said."""


class HeadSearch:
    """The search for one answer; raises NoHeadError when it is over."""

    def __init__(self, services: Services, model: ServedModel, admission: Admission) -> None:
        self._services = services
        self._model = model
        self._admission = admission
        self._route: RouteAnswer | None = None
        self._may_be_open = False
        self._is_promised = False
        self.tries = HeadTries(services.settings.proxy)
        self.times = AnswerTimes()
        self.has_failed = False
        """Whether any Head Worker has."""

    def ahead(self) -> int:
        """How many others wait for this model's Layers, and came before."""
        return self._services.held.ahead(self._model.key, self._admission.sequence)

    async def next_route(self) -> RouteAnswer:
        """Choose the best Route of this moment, or of one that is worth to be waited for."""
        # Who looks again goes on waiting, or the places of others would jump.
        with ExitStack() as place:
            route = await self._next_route(place)
        self.times.turn(Doing.HERE)
        self.times.goes_by(route.hops)
        return route

    async def _next_route(self, place: ExitStack) -> RouteAnswer:
        is_first = self._route is None
        while True:
            now = loop_time()
            try:
                route = await self._look(now, place)
            except (TicketError, UnknownModelError) as error:
                raise NoHeadError(str(error)) from error
            except DatabaseUnavailableError as error:
                if is_first:
                    raise
                self.tries.in_trouble(now)
                if not self.tries.seconds_left(now):
                    raise NoHeadError("The tracker's database does not answer.") from error
                self.times.turn(Doing.QUEUED)
                await asyncio.sleep(self._services.settings.proxy.connect_backoff_seconds)
            else:
                if route is not None:
                    return route
            is_first = False

    def refuse(self, meaning: bytes) -> None:
        """Keep what was asked away from all Workers for a while."""
        services = self._services
        services.quarantine.put((self._model.key, meaning), services.clock.now())

    def on_answered(self) -> None:
        """Hear that the answer is over, however it has ended."""
        if self._route is not None:
            self._services.admissions.ended(self._route.hops)

    async def on_fault(self) -> None:
        """Hear that the Head Worker of the last Route has failed, and look whether it lives."""
        self.on_left()
        await self.is_lost()

    async def on_broken_off(self) -> None:
        """Hear that it has failed while it worked on the request."""
        self.on_left()
        if await self.is_lost():
            self.on_felled()

    def on_felled(self) -> None:
        """Hear that it was lost, or its engine was, while it worked on the request."""
        self.tries.felled(self._head)

    async def is_lost(self) -> bool:
        """Look whether the Worker that was asked last still lives; one in doubt does."""
        assert self._route is not None
        # Its key may have been revoked; who is not marked as lost is only avoided here.
        with suppress(TicketError, DatabaseUnavailableError):
            ticket = await self._services.signer.verify(self._route.ticket)
            fault = HopFault(worker_id=self._head, code="peer_lost")
            await self._services.report_fault(ticket, [fault])
            return not await self._services.store.losses.places((self._head,))
        return False

    def on_left(self) -> None:
        """Hear that the Head Worker of the last Route is lost, or leaves."""
        self.tries.failed(self._head, loop_time())
        self._may_be_open = self.has_failed = True
        self._is_promised = False

    def on_refused(self) -> None:
        """Hear that the Head Worker of the last Route did not begin, and would not soon."""
        self.tries.refused(self._head, loop_time())
        self.has_failed = True
        self._is_promised = False

    def on_not_ready(self, *, is_promised: bool) -> None:
        """Hear that it did not begin, but may soon; perhaps it says so itself."""
        self.tries.failed(self._head, loop_time())
        self.has_failed = True
        self._is_promised = is_promised

    def on_route_failed(self, *, is_unrouted: bool) -> None:
        """Hear that it could not mend its Route, perhaps since no Tracker gave it another one."""
        if is_unrouted:
            self.tries.failed(self._head, loop_time())
        else:
            self.tries.route_failed(self._head, loop_time())
        self._may_be_open = True
        # What a Head Worker knows of other Workers' Layers, it knows from here.
        self._is_promised = False

    @property
    def _head(self) -> WorkerId:
        assert self._route is not None
        return WorkerId(self._route.hops[0].worker_id)

    async def _look(self, now: float, place: ExitStack) -> RouteAnswer | None:
        """Choose a Route, or wait until it is worth to look again."""
        try:
            self._route = await self._choose(now)
        except NoRouteError as error:
            seconds = await self._patience_seconds(error, now)
            place.close()
            place.enter_context(self._services.metrics.held.track_inprogress())
            number = self._admission.sequence
            place.enter_context(self._services.held.waiting(self._model.key, number))
            self.times.turn(Doing.QUEUED)
            await self._services.changes.wait(seconds)
            return None
        return self._route

    async def _choose(self, now: float) -> RouteAnswer:
        *first, last = self.tries.avoid(now)
        for avoided in first:
            with suppress(NoRouteError):
                return await self._sign(avoided)
        return await self._sign(last)

    async def _sign(self, avoid: frozenset[WorkerId]) -> RouteAnswer:
        admissions = self._services.admissions
        if self._route is None or not self._may_be_open:
            with self._services.metrics.route_seconds.time():
                wish = RouteWish(exclude=avoid)
                return await admissions.route(self._model, self._admission, wish)
        ticket = await self._services.signer.verify(self._route.ticket)
        return await admissions.move_head(ticket, avoid)

    async def _patience_seconds(self, error: NoRouteError, now: float) -> float:
        """How long to wait before the next try; raises NoHeadError if that would be in vain."""
        # Being asked for is a reason to plan, though nothing else has changed.
        self._services.rebalance.ring()
        self.tries.in_trouble(now)
        left = self.tries.seconds_left(now)
        rest = self.tries.rest_seconds(now)
        if rest is not None and left:
            return min(rest, left)
        missing = await self._missing(error, now)
        if not missing:
            facts = "All that could have begun were asked."
            raise NoHeadError(facts, is_refused=True) from error
        if not left or not await self._may_come_back():
            facts = unavailable(self._model, missing).detail
            raise NoHeadError(facts, missing=missing) from error
        self.tries.layers_are_missing()
        return min(self._services.settings.proxy.connect_backoff_seconds, left)

    async def _may_come_back(self) -> bool:
        return self._is_promised or await self._services.admissions.may_come_back(self._model)

    async def _missing(self, error: NoRouteError, now: float) -> tuple[ShardRange, ...]:
        """The Layers that nobody serves, whomever this answer avoids."""
        if not self.tries.avoid(now)[-1]:
            return error.missing
        try:
            await self._services.admissions.check_route(self._model)
        except NoRouteError as truly:
            return truly.missing
        return ()
