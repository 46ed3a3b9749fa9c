"""The embeddings endpoint: reads who asks for what, and has a Worker with the encoder answer."""

from functools import partial

import aiohttp
from aiohttp import web

from meshnet_common.edge.http import read_json_body
from meshnet_common.edge.long_bodies import parse_body
from meshnet_common.openai.embeddings import parse_embedding_request, tokens_in
from meshnet_common.openai.meaning import read_with_meaning
from meshnet_tracker.models import encoding
from meshnet_tracker.services import Services
from meshnet_tracker.whole_delivery import WholeDelivery, WholeRequest

EMBEDDINGS = "/v1/embeddings"


class EmbeddingProxy:
    """`POST /v1/embeddings`, also without the version."""

    def __init__(self, services: Services, upstream: aiohttp.ClientSession) -> None:
        self._services = services
        self._delivery = WholeDelivery(services, upstream)

    def routes(self) -> list[web.RouteDef]:
        return [web.post(EMBEDDINGS, self.embed), web.post("/embeddings", self.embed)]

    async def embed(self, request: web.Request) -> web.StreamResponse:
        """Answer by any Worker that can; raises ApiError."""
        services = self._services
        body = await read_json_body(request)
        asked, meaning = await parse_body(partial(read_with_meaning, parse_embedding_request), body)
        find = encoding(services.admissions.find_public_model)
        model = await services.access.enter(request, asked.model, find)
        services.demand.count(model.key)
        whole = WholeRequest(model, EMBEDDINGS, body, meaning)
        answer = await self._delivery.answer(request, whole)
        if isinstance(answer, web.Response) and services.access.counts_tokens(request):
            services.access.spend(request, tokens_in(answer.body))
        return answer
