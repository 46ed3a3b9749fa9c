"""The Gateway's public endpoints: answers, the models of all meshes and Peers, health."""

from collections.abc import Mapping

import msgspec
from aiohttp import hdrs, web

from meshnet_common.edge.client_stream import Signs
from meshnet_common.edge.forwarding import DONE_ENDING, ForwardedAnswer, request_headers
from meshnet_common.edge.http import (
    REQUEST_ID_HEADER,
    json_response,
    read_json_body,
    request_id,
)
from meshnet_common.edge.long_bodies import parse_body
from meshnet_common.openai.apis import CHAT, COMPLETIONS, RESPONSES, VERSION
from meshnet_common.openai.errors import model_not_found, overloaded
from meshnet_common.openai.requests import outline_request
from meshnet_common.openai.stream_endings import StreamEnding
from meshnet_gateway.answering.affinity_key import affinity_key
from meshnet_gateway.answering.asked import Asked
from meshnet_gateway.answering.delivery import Delivery
from meshnet_gateway.answering.embedding import EmbeddingDelivery
from meshnet_gateway.catalogue import Catalogue
from meshnet_gateway.federation.via import VIA_HEADER, check_via, read_via
from meshnet_gateway.services import Services
from meshnet_gateway.serving.admission import RETRY_AFTER_SECONDS

EMBEDDINGS = ("/v1/embeddings", "/embeddings")

ENDINGS: Mapping[str, StreamEnding] = {
    **dict.fromkeys((*CHAT.url_paths, *CHAT.counting_paths), CHAT.ending),
    **dict.fromkeys(COMPLETIONS.url_paths, COMPLETIONS.ending),
    **dict.fromkeys((*RESPONSES.url_paths, *RESPONSES.counting_paths), RESPONSES.ending),
    **dict.fromkeys(EMBEDDINGS, DONE_ENDING),
}
"""What is passed on, and how streams of it end."""


class Handlers:
    """Handlers over what this Gateway serves."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._catalogue = Catalogue(services)

    def routes(self) -> list[web.AbstractRouteDef]:
        return [
            *(web.post(path, self.pass_on) for path in ENDINGS),
            web.get("/v1/models", self.models),
            web.get("/v1/models/{model:.+}", self.model),
            web.get("/healthz", self.healthz),
            web.get("/health", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/ready", self.readyz),
        ]

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Have a request answered; it goes on unread, but for its model and what that needs."""
        # Also what is still to come counts, so that no crowd is read beyond what there is room for.
        most_bytes = request.client_max_size
        announced_bytes = min(request.content_length or most_bytes, most_bytes)
        with self._services.bodies.holding(announced_bytes) as body:
            asked = await self._asked(request)
            body.settle(len(asked.body))
            return await self._answer(request, asked)

    async def _answer(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        settings = self._services.settings
        signs = Signs(settings.ack_after_ms / 1000, settings.keep_alive_seconds)
        answer = ForwardedAnswer(request, ENDINGS[request.path], signs)
        sides = self._services.sides_of(asked.model)
        if asked.is_embedding and sides is not None:
            return await EmbeddingDelivery(self._services, asked, answer, sides).run()
        return await Delivery(self._services, asked, answer).run()

    async def models(self, request: web.Request) -> web.Response:
        """List the models of all meshes, Endpoints and Peers."""
        models = await self._catalogue.models(_caller(request), _via(request))
        return json_response(msgspec.json.encode({"object": "list", "data": models}))

    async def model(self, request: web.Request) -> web.Response:
        """Show one model; its id may hold slashes."""
        wanted = request.match_info["model"]
        for model in await self._catalogue.models(_caller(request), _via(request)):
            if model.get("id") == wanted:
                return json_response(msgspec.json.encode(model))
        raise model_not_found(wanted)

    async def healthz(self, _request: web.Request) -> web.Response:
        """Tell that this process answers."""
        return json_response(b'{"status":"ok"}')

    async def readyz(self, _request: web.Request) -> web.Response:
        """Tell whether a request could be served: an Endpoint is there, or a Mesh is ready."""
        if not await self._services.is_ready():
            raise overloaded("No Mesh is ready.", RETRY_AFTER_SECONDS)
        return json_response(b'{"status":"ready"}')

    async def _asked(self, request: web.Request) -> Asked:
        body, via = await read_json_body(request), _via(request)
        outline = await parse_body(outline_request, body)
        check_via(via, self._services.settings.mesh_id)
        model = self._services.settings.model(outline.model)
        is_warm = model is not None and model.balance == "prefix"
        return Asked(
            model=outline.model,
            is_stream=bool(outline.stream),
            url_path=VERSION + request.path.removeprefix(VERSION),
            body=body,
            headers=request_headers(request),
            caller=_caller(request),
            key=await parse_body(affinity_key, body) if is_warm else "",
            via=via,
        )


def _via(request: web.Request) -> tuple[str, ...]:
    return read_via(request.headers.get(VIA_HEADER))


def _caller(request: web.Request) -> dict[str, str]:
    headers = {REQUEST_ID_HEADER: request_id(request)}
    if hdrs.AUTHORIZATION in request.headers:
        headers[hdrs.AUTHORIZATION] = request.headers[hdrs.AUTHORIZATION]
    return headers
