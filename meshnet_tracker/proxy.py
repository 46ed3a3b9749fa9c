"""The endpoints that answer with text: read who asks for what, and have it delivered.

The body goes on to a Head Worker as it came. Whether the client wants a stream or one body, the
Head Worker streams (`meshnet_common.protocol.resume`).
"""

from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp
from aiohttp import hdrs, web

from meshnet_common.affinity import prefix_key
from meshnet_common.edge.forwarding import request_headers
from meshnet_common.edge.http import read_json_body, request_id, tell_in_headers
from meshnet_common.edge.long_bodies import parse_body
from meshnet_common.openai.apis import APIS, Api
from meshnet_common.openai.meaning import read_with_meaning
from meshnet_tracker.client_answer import ClientAnswer, CollectedAnswer, StreamedAnswer
from meshnet_tracker.delivery import Asked, Delivery
from meshnet_tracker.head_call import HeadCall
from meshnet_tracker.head_search import HeadSearch
from meshnet_tracker.models import Find, answering
from meshnet_tracker.services import Services

CANARIES = "/canary"

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AnswerProxy:
    """The APIs that answer with text, also without the version; Canaries are under `/canary`."""

    def __init__(self, services: Services, upstream: aiohttp.ClientSession) -> None:
        self._services = services
        self._call = HeadCall(upstream, services.answers)

    def routes(self) -> list[web.RouteDef]:
        admissions = self._services.admissions
        return [
            web.post(url_path, self._answering(api, find))
            for api in APIS
            for url_path, find in (
                *((url_path, admissions.find_public_model) for url_path in api.url_paths),
                (f"{CANARIES}{api.url_path}", admissions.find_canary),
            )
        ]

    def _answering(self, api: Api, find: Find) -> _Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            return await self._answer(request, api, find)

        return answer

    async def _answer(self, request: web.Request, api: Api, find: Find) -> web.StreamResponse:
        """Answer, whatever becomes of Head Workers; raises ApiError for a request that is none."""
        body = await read_json_body(request)
        text, meaning = await parse_body(partial(read_with_meaning, api.parse), body)
        services = self._services
        model = await services.access.enter(request, text.model, answering(find))
        services.quarantine.check((model.key, meaning), services.clock.now())
        services.demand.count(model.key)
        admission = await services.admissions.admit(prefix_key(text.model, text.turns()))
        search = HeadSearch(services, model, admission)
        tell_in_headers(request, search.times.headers)
        policy = services.settings.proxy
        client: ClientAnswer = CollectedAnswer()
        if text.stream:
            client = StreamedAnswer(request, policy, api.ending)
        asked = Asked(api, body, text, _headers(request), request_id(request), meaning)
        delivery = Delivery(asked, client, search, self._call)
        try:
            return await delivery.run()
        finally:
            search.on_answered()
            # No answer has more, whatever a volunteer says.
            most = model.preset.context_tokens * text.choice_count
            services.access.spend(request, min(delivery.tokens, most))


def _headers(request: web.Request) -> dict[str, str]:
    kept = request_headers(request)
    return {name: text for name, text in kept.items() if name.lower() != hdrs.CONTENT_TYPE.lower()}
