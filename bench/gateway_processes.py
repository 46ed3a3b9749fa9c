"""What stands around the Gateway in `bench.gateway`: an upstream that costs little, a bare proxy.

Run as a program: `upstream`, or `bare URL`; both take `--port` and `--ready-file`.
"""

import argparse
import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

from meshnet_common.edge.serving import serve_until_signal, write_ready_file
from meshnet_common.openai.sse import DONE_EVENT, data_event

MODEL = "bench"
HELD_MODEL = "held"
"""The Gateway lets one request for it through at a time."""
EVENTS = 66
_LOOPBACK = "127.0.0.1"


def _chunk(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    facts = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1}
    return {**facts, "model": MODEL, "choices": [choice]}


_FIRST = data_event(json.dumps(_chunk({"role": "assistant", "content": ""})).encode())
_NEXT = data_event(json.dumps(_chunk({"content": " sea"})).encode())
_LAST = data_event(json.dumps(_chunk({}, "stop")).encode()) + DONE_EVENT
WHOLE = json.dumps(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": " sea" * 64},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 8, "completion_tokens": 64, "total_tokens": 72},
    }
).encode()

DIMENSIONS = 8
EMBEDDING = json.dumps(
    {
        "object": "list",
        "model": MODEL,
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5] * DIMENSIONS}],
        "usage": {"prompt_tokens": 8, "total_tokens": 8},
    }
).encode()


class Upstream:
    """Answers at once; `metadata` of a request may ask for more events, pauses, or a hold."""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        if not asked.get("stream"):
            return web.Response(body=WHOLE, content_type="application/json")
        wishes = asked.get("metadata") or {}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(float(wishes.get("hold_seconds", 0)))
        await response.write(_FIRST)
        pause = float(wishes.get("pause_seconds", 0))
        for _ in range(int(wishes.get("events", EVENTS)) - 2):
            await asyncio.sleep(pause)
            await response.write(_NEXT)
        await response.write(_LAST)
        return response

    async def embeddings(self, request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=EMBEDDING, content_type="application/json")

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})


def upstream_application() -> web.Application:
    """Make the upstream's application."""
    upstream, app = Upstream(), web.Application()
    app.router.add_post("/v1/chat/completions", upstream.chat)
    app.router.add_post("/v1/embeddings", upstream.embeddings)
    app.router.add_get("/v1/models", upstream.models)
    return app


async def _pass_on(
    request: web.Request, session: aiohttp.ClientSession, to: str
) -> web.StreamResponse:
    """Do the least that a proxy can: nothing is checked, counted, held or tried again."""
    body, headers = await request.read(), {"Content-Type": "application/json"}
    async with session.post(to + request.path, data=body, headers=headers) as answer:
        response = web.StreamResponse(status=answer.status)
        response.content_type = answer.content_type
        await response.prepare(request)
        async for data in answer.content.iter_any():
            await response.write(data)
        await response.write_eof()
        return response


async def serve(what: str, to: str, port: int, ready_file: str) -> None:
    """Run one of the two until a signal ends it."""
    async with AsyncExitStack() as stack:
        if what == "upstream":
            app = upstream_application()
        else:
            connector = aiohttp.TCPConnector(limit=0)
            session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
            app = web.Application()
            app.router.add_post("/{path:.+}", lambda request: _pass_on(request, session, to))
        await serve_until_signal(app, _LOOPBACK, port, partial(write_ready_file, ready_file))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("upstream", "bare"))
    parser.add_argument("to", nargs="?", default="")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-file", required=True)
    given = parser.parse_args()
    uvloop.run(serve(given.what, given.to, given.port, given.ready_file))


if __name__ == "__main__":
    main()
