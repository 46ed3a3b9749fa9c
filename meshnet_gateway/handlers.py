"""The Gateway's endpoints: answers through a Head Worker, the models of all meshes, health."""

from collections.abc import Mapping

import msgspec
from aiohttp import hdrs, web

from meshnet_common.edge.forwarding import DONE_ENDING, ForwardedAnswer, Target, request_headers
from meshnet_common.edge.http import (
    REQUEST_ID_HEADER,
    json_response,
    read_json_body,
    request_id,
)
from meshnet_common.openai.apis import CHAT, COMPLETIONS, RESPONSES, VERSION
from meshnet_common.openai.errors import model_not_found, overloaded
from meshnet_common.openai.requests import outline_request
from meshnet_common.openai.stream_endings import StreamEnding
from meshnet_gateway.meshes import RETRY_AFTER_SECONDS, Meshes
from meshnet_gateway.upstreams import HeadWorkerPool

ENDINGS: Mapping[str, StreamEnding] = {
    **dict.fromkeys((*CHAT.url_paths, *CHAT.counting_paths), CHAT.ending),
    **dict.fromkeys(COMPLETIONS.url_paths, COMPLETIONS.ending),
    **dict.fromkeys((*RESPONSES.url_paths, *RESPONSES.counting_paths), RESPONSES.ending),
    **dict.fromkeys(("/v1/embeddings", "/embeddings"), DONE_ENDING),
}
"""What is passed on, and how streams of it end."""


class Handlers:
    """Handlers over the meshes and their Head Workers."""

    def __init__(self, meshes: Meshes, pool: HeadWorkerPool) -> None:
        self._meshes = meshes
        self._pool = pool

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
        """Find the model's Head Workers and pass the request on unread."""
        body = await read_json_body(request)
        model = outline_request(body).model
        heads = await self._meshes.heads_of(model, _caller(request))
        # The Head Worker asks its Tracker for a Route with the caller's key, so it needs the key.
        headers = request_headers(request, _caller(request))
        url_path = VERSION + request.path.removeprefix(VERSION)
        answer = ForwardedAnswer(request, ENDINGS[request.path])
        return await self._pool.forward(answer, heads, Target(url_path, body, headers))

    async def models(self, request: web.Request) -> web.Response:
        """List the models of all meshes."""
        models = await self._meshes.models(_caller(request))
        return json_response(msgspec.json.encode({"object": "list", "data": models}))

    async def model(self, request: web.Request) -> web.Response:
        """Show one model; its id may hold slashes."""
        wanted = request.match_info["model"]
        for model in await self._meshes.models(_caller(request)):
            if model.get("id") == wanted:
                return json_response(msgspec.json.encode(model))
        raise model_not_found(wanted)

    async def healthz(self, _request: web.Request) -> web.Response:
        """Tell that this process answers."""
        return json_response(b'{"status":"ok"}')

    async def readyz(self, _request: web.Request) -> web.Response:
        """Tell whether a request could be served: some Mesh is ready."""
        if not await self._meshes.ready():
            raise overloaded("No Mesh is ready.", RETRY_AFTER_SECONDS)
        return json_response(b'{"status":"ready"}')


def _caller(request: web.Request) -> dict[str, str]:
    headers = {REQUEST_ID_HEADER: request_id(request)}
    if hdrs.AUTHORIZATION in request.headers:
        headers[hdrs.AUTHORIZATION] = request.headers[hdrs.AUTHORIZATION]
    return headers
