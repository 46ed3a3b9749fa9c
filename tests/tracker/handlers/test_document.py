import re

from aiohttp import web

from meshnet_common.openai.document import OPERATIONS, openapi_document
from tests.tracker.running import RunningTracker


async def test_the_document_is_served_to_everybody(tracker: RunningTracker) -> None:
    reply = await tracker.get("/openapi.json")
    assert reply.status == 200
    assert reply.json["paths"] == openapi_document("")["paths"]


async def test_every_documented_endpoint_is_there(tracker: RunningTracker) -> None:
    for operation in OPERATIONS:
        where = re.sub(r"{\w+}", "nothing", operation.path)
        reply = await tracker.call(operation.method.upper(), where, b"{}", "")
        assert reply.status in {200, 400, 404}, operation.path
        if reply.status == 404:
            assert reply.error["code"] == "model_not_found"
        wrong = await tracker.call("PATCH", where, b"{}", "")
        assert wrong.status == web.HTTPMethodNotAllowed.status_code
