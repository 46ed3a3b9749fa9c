"""The embeddings endpoint: finds a Worker that holds the encoder, and passes its answer on.

Nothing of an answer goes out before all of it is here, so another Worker is simply asked anew.
"""

import asyncio

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
from meshnet_common.edge.http import read_json_body
from meshnet_common.ids import WorkerId
from meshnet_common.openai.embeddings import parse_embedding_request
from meshnet_common.openai.errors import invalid_request, model_unavailable, upstream_failed
from meshnet_common.protocol.messages import RouteAnswer
from meshnet_common.protocol.tickets import TICKET_HEADER
from meshnet_tracker.head_search import HeadSearch, NoHeadError
from meshnet_tracker.models import RETRY_AFTER_SECONDS, ServedModel
from meshnet_tracker.services import Services
from meshnet_tracker.under_way import HeadLostError

EMBEDDINGS = "/v1/embeddings"
ENCODE_SECONDS = 120.0
"""A Worker that has taken so long for one request hangs."""


class EmbeddingProxy:
    """`POST /v1/embeddings`, also without the version."""

    def __init__(self, services: Services, upstream: aiohttp.ClientSession) -> None:
        self._services = services
        self._upstream = upstream

    def routes(self) -> list[web.RouteDef]:
        return [web.post(EMBEDDINGS, self.embed), web.post("/embeddings", self.embed)]

    async def embed(self, request: web.Request) -> web.StreamResponse:
        """Answer by any Worker that can; raises ApiError."""
        services = self._services
        body = await read_json_body(request)
        asked = parse_embedding_request(body)
        key = await services.access.check(request, asked.model)
        model = await services.admissions.find_public_model(asked.model)
        if not model.preset.is_encoder:
            raise invalid_request(f"`{asked.model}` makes no embeddings.", "model")
        await services.access.count(request, key)
        services.demand.count(model.key)
        search = HeadSearch(services, model, await services.admissions.admit())
        try:
            return await self._deliver(request, body, model, search)
        finally:
            search.on_answered()

    async def _deliver(
        self, request: web.Request, body: bytes, model: ServedModel, search: HeadSearch
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
                raise upstream_failed(f"No Worker answered for `{model.name}`.") from error
            try:
                return await self._ask(answer, request, body, route)
            except UpstreamError as error:
                last = error
                search.on_not_ready(is_promised=isinstance(error, UpstreamRefusedError))

    async def _ask(
        self, answer: ForwardedAnswer, request: web.Request, body: bytes, route: RouteAnswer
    ) -> web.StreamResponse:
        head = route.hops[0]
        headers = {
            **request_headers(request),
            hdrs.CONTENT_TYPE: "application/json",
            TICKET_HEADER: route.ticket,
        }
        target = Target(f"{head.url.rstrip('/')}{EMBEDDINGS}", body, headers)
        try:
            under_way = self._services.answers.of_head(WorkerId(head.worker_id))
            async with under_way, asyncio.timeout(ENCODE_SECONDS):
                return await answer.forward(self._upstream, target)
        except (TimeoutError, HeadLostError) as error:
            raise UpstreamUnreachableError(f"{type(error).__name__}.") from error
