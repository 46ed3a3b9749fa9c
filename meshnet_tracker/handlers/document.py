"""`GET /openapi.json`: what the public API is, for people and programs."""

from importlib.metadata import version

import msgspec
from aiohttp import web

from meshnet_common.edge.http import json_response
from meshnet_common.openai.document import openapi_document


class DocumentHandlers:
    """Answers with the OpenAPI document, which needs no key."""

    def __init__(self) -> None:
        self._document = msgspec.json.encode(openapi_document(version("meshnet")))

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/openapi.json", self.show)]

    async def show(self, request: web.Request) -> web.Response:
        del request
        return json_response(self._document)
