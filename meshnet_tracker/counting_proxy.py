"""The endpoints that count a prompt's tokens: a Worker that has the tokenizer does it."""

from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp
from aiohttp import web

from meshnet_common.edge.http import read_json_body
from meshnet_common.edge.long_bodies import parse_body
from meshnet_common.openai.apis import COUNTED_APIS, Api
from meshnet_common.openai.meaning import read_with_meaning
from meshnet_tracker.models import answering
from meshnet_tracker.services import Services
from meshnet_tracker.whole_delivery import WholeDelivery, WholeRequest

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CountingProxy:
    """`POST …/input_tokens` of each API that has it, also without the version."""

    def __init__(self, services: Services, upstream: aiohttp.ClientSession) -> None:
        self._services = services
        self._delivery = WholeDelivery(services, upstream)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(url_path, self._counting(api))
            for api in COUNTED_APIS
            for url_path in api.counting_paths
        ]

    def _counting(self, api: Api) -> _Handler:
        async def count(request: web.Request) -> web.StreamResponse:
            return await self._count(request, api)

        return count

    async def _count(self, request: web.Request, api: Api) -> web.StreamResponse:
        services = self._services
        body = await read_json_body(request)
        asked, meaning = await parse_body(partial(read_with_meaning, api.parse), body)
        find = answering(services.admissions.find_public_model)
        model = await services.access.enter(request, asked.model, find)
        url_path, _ = api.counting_paths
        return await self._delivery.answer(request, WholeRequest(model, url_path, body, meaning))
