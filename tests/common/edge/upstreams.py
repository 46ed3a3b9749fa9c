"""Upstreams on loopback that answer as their script says, and a proxy in front of them."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from meshnet_common.edge.forwarding import (
    ForwardedAnswer,
    Target,
    UpstreamError,
    Witness,
    request_headers,
    upstream_session,
)
from meshnet_common.edge.http import new_application, open_event_stream, read_json_body
from meshnet_common.edge.serving import listening

Script = Callable[[web.Request], Awaitable[web.StreamResponse]]

LOOPBACK = "127.0.0.1"
JSON = {"Content-Type": "application/json"}
NOBODY = "http://127.0.0.1:9"
"""The discard port, on which nothing listens."""


@dataclass
class Upstream:
    """A scripted server, and what it saw."""

    url: str = ""
    seen: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a handler was cancelled, since its client had gone."""


@asynccontextmanager
async def upstream(script: Script) -> AsyncIterator[Upstream]:
    facts = Upstream()

    async def handle(request: web.Request) -> web.StreamResponse:
        facts.seen.append(request)
        facts.bodies.append(await request.read())
        facts.arrived.set()
        try:
            return await script(request)
        except asyncio.CancelledError:
            facts.left.set()
            raise

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/{api:.+}", handle)
    async with listening(app, LOOPBACK, 0) as facts.url:
        yield facts


def events(*pieces: bytes, then_break: bool = False) -> Script:
    """Stream these pieces, each in a write of its own."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = await open_event_stream(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0)
        if then_break:
            _break_off(request)
        await response.write_eof()
        return response

    return script


def whole(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Script:
    """Answer with one JSON body."""

    async def script(_request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=body, status=status, headers=headers, content_type="application/json"
        )

    return script


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Close the connection without an answer."""
    _break_off(request)
    return web.Response()


def endless(*pieces: bytes) -> Script:
    """Stream these pieces and then nothing, for ever."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = await open_event_stream(request)
        for piece in pieces:
            await response.write(piece)
        await asyncio.Event().wait()
        return response

    return script


@asynccontextmanager
async def proxy_over(
    *urls: str, idle_seconds: float = 5.0, witness: Witness | None = None
) -> AsyncIterator[str]:
    """Serve a proxy that tries these upstreams in order."""

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = ForwardedAnswer(request)
        body = await read_json_body(request)
        headers = request_headers(request, {"x-meshnet-ticket": "signed"})
        last = UpstreamError()
        for url in urls:
            try:
                target = Target(f"{url}/v1/chat/completions", body, headers)
                return await answer.forward(session, target, witness)
            except UpstreamError as error:
                last = error
        return await answer.give_up(last)

    app = new_application()
    app.router.add_post("/v1/{api:.+}", handle)
    async with upstream_session(idle_seconds) as session, listening(app, LOOPBACK, 0) as url:
        yield url


async def post(
    url: str,
    body: bytes = b"{}",
    headers: Mapping[str, str] | None = None,
    path: str = "/v1/chat/completions",
) -> tuple[aiohttp.ClientResponse, bytes]:
    """Ask the proxy once and read the whole answer."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
        session.post(
            f"{url}{path}",
            data=io.BytesIO(body),
            headers={**JSON, **(headers or {})},
        ) as response,
    ):
        return response, await response.read()


def _break_off(request: web.Request) -> None:
    # What was written still arrives, then the connection ends without the last chunk.
    if request.transport is not None:
        request.transport.close()
