"""The chat endpoint: reads who asks for what, and has it delivered.

The body goes on to a Head Worker as it came. Whether the client wants a stream or one body, the
Head Worker streams (`meshnet_common.protocol.resume`).
"""

from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import hdrs, web

from meshnet_common.edge.forwarding import request_headers
from meshnet_common.edge.http import read_json_body, request_id
from meshnet_common.openai.errors import invalid_request
from meshnet_common.openai.requests import parse_chat_request
from meshnet_tracker.client_answer import ClientAnswer, CollectedAnswer, StreamedAnswer
from meshnet_tracker.delivery import CHAT, Asked, Delivery
from meshnet_tracker.head_call import HeadCall
from meshnet_tracker.head_search import HeadSearch
from meshnet_tracker.models import ServedModel
from meshnet_tracker.planning.affinity import prefix_key
from meshnet_tracker.services import Services

CANARY_CHAT = f"/canary{CHAT}"

_Finder = Callable[[str], Awaitable[ServedModel]]


class ChatProxy:
    """`POST /v1/chat/completions`, also without the version; Canaries answer under `/canary`."""

    def __init__(self, services: Services, upstream: aiohttp.ClientSession) -> None:
        self._services = services
        self._call = HeadCall(upstream, services.answers)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(CHAT, self.chat),
            web.post("/chat/completions", self.chat),
            web.post(CANARY_CHAT, self.chat_with_canary),
        ]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer, whatever becomes of Head Workers; raises ApiError for a request that is none."""
        return await self._answer(request, self._services.admissions.find_public_model)

    async def chat_with_canary(self, request: web.Request) -> web.StreamResponse:
        """Answer as a model that takes no other requests yet."""
        return await self._answer(request, self._services.admissions.find_canary)

    async def _answer(self, request: web.Request, find: _Finder) -> web.StreamResponse:
        body = await read_json_body(request)
        chat = parse_chat_request(body)
        admissions = self._services.admissions
        key = await self._services.access.check(request, chat.model)
        model = await find(chat.model)
        if model.preset.is_encoder:
            raise invalid_request(f"`{chat.model}` makes embeddings, and no answers.", "model")
        await self._services.access.count(request, key)
        turns = ((message.role, message.text) for message in chat.messages)
        self._services.demand.count(model.key)
        admission = await admissions.admit(prefix_key(chat.model, turns))
        search = HeadSearch(self._services, model, admission)
        policy = self._services.settings.proxy
        client: ClientAnswer = StreamedAnswer(request, policy) if chat.stream else CollectedAnswer()
        asked = Asked(body, chat, _headers(request), request_id(request))
        try:
            return await Delivery(asked, client, search, self._call).run()
        finally:
            search.on_answered()


def _headers(request: web.Request) -> dict[str, str]:
    kept = request_headers(request)
    return {name: text for name, text in kept.items() if name.lower() != hdrs.CONTENT_TYPE.lower()}
