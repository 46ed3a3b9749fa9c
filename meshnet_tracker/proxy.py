"""The chat endpoint: choose a Route, hand the request to its Head Worker, pass the answer back.

What travels is never read: the body goes on as it came, the answer comes back byte for byte
(`meshnet_common.edge.forwarding`). Until the first event a failed Head Worker is replaced by
another one; from then on its loss is an error event.
"""

import aiohttp
import structlog
from aiohttp import hdrs, web

from meshnet_common.edge.forwarding import (
    ForwardedAnswer,
    Target,
    UpstreamError,
    request_headers,
)
from meshnet_common.edge.http import read_json_body, request_id
from meshnet_common.ids import WorkerId
from meshnet_common.openai.errors import worker_lost
from meshnet_common.openai.requests import parse_chat_request
from meshnet_common.protocol.messages import RouteAnswer
from meshnet_tracker.admission import RouteWish
from meshnet_tracker.models import unavailable
from meshnet_tracker.planning.routes import NoRouteError
from meshnet_tracker.services import Services
from meshnet_tracker.under_way import HeadLostError

CHAT = "/v1/chat/completions"
TICKET_HEADER = "x-meshnet-ticket"
MAX_TRIES = 3

_logger = structlog.get_logger()


class ChatProxy:
    """`POST /v1/chat/completions`, also without the version."""

    def __init__(self, services: Services, upstream: aiohttp.ClientSession) -> None:
        self._services = services
        self._upstream = upstream

    def routes(self) -> list[web.RouteDef]:
        return [web.post(CHAT, self.chat), web.post("/chat/completions", self.chat)]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer from a Head Worker, or with an ApiError before anything was sent."""
        body = await read_json_body(request)
        model = await self._services.admissions.find_model(parse_chat_request(body).model)
        admission = await self._services.admissions.admit()
        answer = ForwardedAnswer(request)
        failed: dict[WorkerId, UpstreamError] = {}
        while len(failed) < MAX_TRIES:
            try:
                wish = RouteWish(exclude=frozenset(failed))
                route = await self._services.admissions.route(model, admission, wish)
            except NoRouteError as error:
                if failed:
                    break
                # Being asked for is a reason to plan, though nothing else has changed.
                self._services.rebalance.ring()
                raise unavailable(model, error.missing) from error
            head = WorkerId(route.hops[0].worker_id)
            try:
                async with self._services.answers.of_head(head):
                    return await answer.forward(self._upstream, _target(request, body, route))
            except HeadLostError as error:
                return await answer.fail(worker_lost(str(error)))
            except UpstreamError as error:
                failed[head] = error
                _logger.warning(
                    "head worker failed",
                    worker=head,
                    reason=str(error),
                    request_id=request_id(request),
                )
        return await answer.give_up(list(failed.values())[-1])


def _target(request: web.Request, body: bytes, route: RouteAnswer) -> Target:
    kept = {
        name: value
        for name, value in request_headers(request).items()
        if name.lower() != hdrs.CONTENT_TYPE.lower()
    }
    own = {hdrs.CONTENT_TYPE: "application/json", TICKET_HEADER: route.ticket}
    return Target(f"{route.hops[0].url.rstrip('/')}{CHAT}", body, {**kept, **own})
