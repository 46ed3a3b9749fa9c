"""Brings an answer that no Session makes to its client: any Worker is asked, whole, until one did.

Nothing of an answer goes out before all of it is here, so another Worker is simply asked anew.
"""

import asyncio
from dataclasses import dataclass

import aiohttp
from aiohttp import hdrs, web

from meshnet_common.edge.forwarding import (
    ForwardedAnswer,
    Target,
    UpstreamError,
    UpstreamRefusedError,
    UpstreamUnreachableError,
    request_headers,
)
from meshnet_common.edge.http import tell_in_headers
from meshnet_common.ids import WorkerId
from meshnet_common.openai.errors import (
    deadline_exceeded,
    model_unavailable,
    request_blamed,
    upstream_failed,
)
from meshnet_common.protocol.messages import RouteAnswer
from meshnet_common.protocol.tickets import TICKET_HEADER
from meshnet_tracker.answer_times import Doing
from meshnet_tracker.head_call import NOT_CONNECTED
from meshnet_tracker.head_search import HeadSearch, NoHeadError
from meshnet_tracker.models import RETRY_AFTER_SECONDS, ServedModel
from meshnet_tracker.quarantine import QUARANTINE_SECONDS
from meshnet_tracker.services import Services
from meshnet_tracker.under_way import HeadLostError

ANSWER_SECONDS = 120.0
"""A Worker that has taken so long for one request hangs, or so would any other one."""


class TooSlowError(UpstreamUnreachableError):
    """A Worker took too long for this request."""


@dataclass(frozen=True, slots=True)
class WholeRequest:
    """What a client wants of a model, where Workers answer that, and its body as it came."""

    model: ServedModel
    url_path: str
    body: bytes
    meaning: bytes


class WholeDelivery:
    """Asks Workers."""

    def __init__(self, services: Services, upstream: aiohttp.ClientSession) -> None:
        self._services = services
        self._upstream = upstream

    async def answer(self, request: web.Request, asked: WholeRequest) -> web.StreamResponse:
        """Answer by any Worker that can; raises ApiError."""
        meaning = asked.model.key, asked.meaning
        self._services.quarantine.check(meaning, self._services.clock.now())
        admission = await self._services.admissions.admit()
        search = HeadSearch(self._services, asked.model, admission)
        tell_in_headers(request, search.times.headers)
        try:
            return await self._deliver(request, asked, search)
        finally:
            search.on_answered()

    async def _deliver(
        self, request: web.Request, asked: WholeRequest, search: HeadSearch
    ) -> web.StreamResponse:
        answer, last = ForwardedAnswer(request), None
        while True:
            try:
                route = await search.next_route()
            except NoHeadError as error:
                if last is not None:
                    return await answer.give_up(last)
                if error.missing:
                    raise model_unavailable(error.detail, RETRY_AFTER_SECONDS) from error
                raise upstream_failed(f"No Worker answered for `{asked.model.name}`.") from error
            search.times.turn(Doing.AT_WORKERS)
            try:
                return await self._ask(answer, request, asked, route)
            except UpstreamError as error:
                last = error
                await _learn(error, search)
            finally:
                search.times.turn(Doing.HERE)
            if search.tries.is_blamed:
                search.refuse(asked.meaning)
                raise request_blamed(QUARANTINE_SECONDS)

    async def _ask(
        self,
        answer: ForwardedAnswer,
        request: web.Request,
        asked: WholeRequest,
        route: RouteAnswer,
    ) -> web.StreamResponse:
        head = route.hops[0]
        headers = {
            **request_headers(request),
            hdrs.CONTENT_TYPE: "application/json",
            TICKET_HEADER: route.ticket,
        }
        target = Target(f"{head.url.rstrip('/')}{asked.url_path}", asked.body, headers)
        try:
            under_way = self._services.answers.of_head(WorkerId(head.worker_id))
            async with under_way, asyncio.timeout(ANSWER_SECONDS):
                return await answer.forward(self._upstream, target)
        except HeadLostError as error:
            raise UpstreamUnreachableError(f"{type(error).__name__}.") from error
        except TimeoutError as error:
            raise TooSlowError(f"The limit is {ANSWER_SECONDS:.0f} seconds.") from error


async def _learn(error: UpstreamError, search: HeadSearch) -> None:
    """Learn from a Worker that did not answer; raises ApiError 504 where no other would either."""
    search.on_not_ready(is_promised=isinstance(error, UpstreamRefusedError))
    if _got_it(error) and await search.is_lost():
        search.on_felled()
    elif isinstance(error, TooSlowError):
        raise deadline_exceeded(str(error)) from error


def _got_it(error: UpstreamError) -> bool:
    """Whether the Worker has broken off what it was asked."""
    is_refusal = isinstance(error, UpstreamRefusedError)
    return not (is_refusal or isinstance(error.__cause__, NOT_CONNECTED))
