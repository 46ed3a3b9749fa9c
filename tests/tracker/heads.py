"""A small HTTP server that plays the Head Worker's part, well or badly.

All of them say the same: each place of TEXTS is a token, and one of them gives no text yet.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from aiohttp import web
from multidict import CIMultiDictProxy

from meshnet_common.openai.apis import APIS, COUNTING
from meshnet_common.openai.sse import DONE_EVENT, data_event, noted_event
from meshnet_common.protocol.notes import (
    MOVED_NOTE,
    Sent,
    alive_note,
    answer_note,
    failed_note,
    sent_note,
    token_ids_note,
    usage_note,
)
from meshnet_common.protocol.resume import ResumeRecord, ResumeRequest
from tests.tracker.served import served

TEXTS = ("He", "llo ", "", "you")
ANSWER_ID, CREATED = "chatcmpl-1", 1_000_000


def chunk(**delta: str) -> bytes:
    choice = {"index": 0, "delta": delta}
    return json.dumps({"id": ANSWER_ID, "choices": [choice]}).encode()


ROLE = chunk(role="assistant")
FINISH = chunk(finish_reason="stop")
WHOLE = json.dumps({"id": ANSWER_ID, "text": "".join(TEXTS)}).encode()
EVENTS = tuple(map(data_event, (ROLE, *(chunk(content=text) for text in TEXTS if text), FINISH)))
STREAM = b"".join(EVENTS) + DONE_EVENT
"""What a client gets that asks for a stream."""

Behaviour = Callable[["FakeHead", web.Request], Awaitable[web.StreamResponse]]


@dataclass
class FakeHead:
    """What it was asked, and what a test wants it to wait for or to know."""

    behaviour: Behaviour
    url: str = ""
    is_well: bool = True
    """Whether it answers a Tracker that wonders."""
    probes: int = 0
    headers: list[CIMultiDictProxy[str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    url_paths: list[str] = field(default_factory=list)
    usage: tuple[int, int] | None = None
    """What it says that its answers cost, if anything."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers)
        self.url_paths.append(request.path)
        self.bodies.append(await request.read())
        try:
            return await self.behaviour(self, request)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def healthz(self, _request: web.Request) -> web.Response:
        self.probes += 1
        return web.Response(status=200 if self.is_well else 503)

    @property
    def record(self) -> ResumeRecord | None:
        """What it was asked to go on with the last time."""
        if self.headers[-1].get("x-meshnet-resume") != "1":
            return None
        return msgspec.json.decode(self.bodies[-1], type=ResumeRequest).record

    def pieces(self) -> Iterator[bytes]:
        """The blocks of its answer, from where it was asked to go on."""
        wants_stream = b'"stream":true' in self.bodies[-1].replace(b": ", b":")
        choice = self.record.choices[0] if self.record else None
        sent = choice.sent if choice else ()
        yield noted_event([answer_note(ANSWER_ID, CREATED)])
        if self.usage is not None:
            yield noted_event([usage_note(self.usage[0], 0)])
        if wants_stream and Sent.ROLE not in sent:
            yield noted_event([sent_note(Sent.ROLE)], ROLE)
        for place in range(len(choice.token_ids) if choice else 0, len(TEXTS)):
            shown = [chunk(content=TEXTS[place])] if wants_stream and TEXTS[place] else []
            yield noted_event([token_ids_note([place])], *shown)
        if self.usage is not None:
            yield noted_event([usage_note(*self.usage)])
        if not wants_stream:
            yield data_event(WHOLE)
        elif Sent.FINISH not in sent:
            yield noted_event([sent_note(Sent.FINISH)], FINISH)
        yield DONE_EVENT


@asynccontextmanager
async def running_head(behaviour: Behaviour) -> AsyncIterator[FakeHead]:
    head = FakeHead(behaviour)
    app = web.Application(client_max_size=8 << 20)
    for api in APIS:
        app.router.add_post(api.url_path, head.answer)
        app.router.add_post(f"{api.url_path}{COUNTING}", head.answer)
    app.router.add_get("/healthz", head.healthz)
    async with served(app) as head.url:
        yield head


async def open_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def begun(head: FakeHead, request: web.Request, blocks: int) -> web.StreamResponse:
    response = await open_stream(request)
    for piece, _ in zip(head.pieces(), range(blocks), strict=False):
        await response.write(piece)
    return response


async def streams(head: FakeHead, request: web.Request) -> web.StreamResponse:
    return await begun(head, request, 100)


def costing(prompt: int, answer: int, then: Behaviour = streams) -> Behaviour:
    """Say what an answer has cost."""

    async def costs(head: FakeHead, request: web.Request) -> web.StreamResponse:
        head.usage = prompt, answer
        return await then(head, request)

    return costs


def lives_after(blocks: int, ahead: int = 0) -> Behaviour:
    """Only show signs of life after so many blocks, until it is told to go on."""

    async def lives(head: FakeHead, request: web.Request) -> web.StreamResponse:
        response = await begun(head, request, blocks)
        while not head.go_on.is_set():
            await response.write(noted_event([alive_note(ahead)]))
            await asyncio.sleep(0.1)
        for piece in list(head.pieces())[blocks:]:
            await response.write(piece)
        return response

    return lives


async def refuses_ticket(_head: FakeHead, _request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"code": "invalid_ticket"}}, status=403)


async def is_overloaded(_head: FakeHead, _request: web.Request) -> web.StreamResponse:
    return _refusal("overloaded")


async def is_not_ready(_head: FakeHead, _request: web.Request) -> web.StreamResponse:
    return _refusal("model_unavailable")


async def answers_without_streaming(_head: FakeHead, _request: web.Request) -> web.StreamResponse:
    return web.json_response({"object": "chat.completion"})


async def tells_of_a_failure(_head: FakeHead, request: web.Request) -> web.StreamResponse:
    response = await open_stream(request)
    body = b'{"error":{"message":"Full.","type":"server_error","param":null,"code":"overloaded"}}'
    await response.write(noted_event([failed_note(503, "5")], body) + DONE_EVENT)
    return response


def loses_its_route_after(blocks: int, code: str = "worker_lost", status: int = 502) -> Behaviour:
    """Tell of an error after so many blocks."""

    async def loses(head: FakeHead, request: web.Request) -> web.StreamResponse:
        response = await begun(head, request, blocks)
        error = {"message": "Gone.", "type": "server_error", "param": None, "code": code}
        body = json.dumps({"error": error}).encode()
        await response.write(noted_event([failed_note(status, None)], body) + DONE_EVENT)
        return response

    return loses


def at_first(times: int, behaviour: Behaviour, then: Behaviour = streams) -> Behaviour:
    """Behave like this so many times, and then otherwise."""

    async def behaves(head: FakeHead, request: web.Request) -> web.StreamResponse:
        return await (behaviour if len(head.bodies) <= times else then)(head, request)

    return behaves


async def floods(head: FakeHead, request: web.Request) -> web.StreamResponse:
    """Stream long events without end."""
    response = await begun(head, request, 2)
    while True:
        await response.write(noted_event([token_ids_note([1])], chunk(content="x" * (1 << 18))))


async def dies_before_it_answers(_head: FakeHead, request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def dies_after(blocks: int) -> Behaviour:
    """Break off in the middle of the block after so many."""

    async def dies(head: FakeHead, request: web.Request) -> web.StreamResponse:
        response = await begun(head, request, blocks)
        await response.write(list(head.pieces())[blocks][:-4])
        assert request.transport is not None
        request.transport.abort()
        return response

    return dies


def dies_at_first(times: int) -> Behaviour:
    """Break off so many times, each time a little later."""

    async def dies(head: FakeHead, request: web.Request) -> web.StreamResponse:
        asked = len(head.bodies)
        behaviour = dies_after(asked) if asked <= times else streams
        return await behaviour(head, request)

    return dies


def ends_after(blocks: int) -> Behaviour:
    """Close the stream properly after so many blocks, as if that were all."""

    async def ends(head: FakeHead, request: web.Request) -> web.StreamResponse:
        return await begun(head, request, blocks)

    return ends


def moves_after(blocks: int) -> Behaviour:
    """Leave the Mesh after so many blocks."""

    async def moves(head: FakeHead, request: web.Request) -> web.StreamResponse:
        response = await begun(head, request, blocks)
        await response.write(noted_event([MOVED_NOTE]))
        return response

    return moves


def hangs_after(blocks: int) -> Behaviour:
    """Say nothing more after so many blocks."""

    async def hangs(head: FakeHead, request: web.Request) -> web.StreamResponse:
        response = await begun(head, request, blocks)
        await head.go_on.wait()
        for piece in list(head.pieces())[blocks:]:
            await response.write(piece)
        return response

    return hangs


async def hangs_before_it_answers(head: FakeHead, request: web.Request) -> web.StreamResponse:
    await head.go_on.wait()
    return await streams(head, request)


async def writes_junk(_head: FakeHead, request: web.Request) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(b"id: 1\n\n")
    return response


def _refusal(code: str) -> web.Response:
    error = {"message": "No.", "type": "server_error", "param": None, "code": code}
    return web.json_response({"error": error}, status=503, headers={"Retry-After": "5"})
