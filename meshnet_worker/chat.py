"""The APIs that answer with text, on a Head Worker: a prompt in, streamed or whole text out.

Who asks for token ids is a Tracker: it gets a stream that another Head Worker can go on with
(`answers.telling`), and may ask to go on with one. All others get what OpenAI's clients read.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from meshnet_common.edge.clock import Clock, loop_time
from meshnet_common.edge.http import (
    MAX_BODY_BYTES,
    json_response,
    open_event_stream,
    read_json_body,
)
from meshnet_common.edge.long_bodies import parse_body
from meshnet_common.errors import MeshnetError
from meshnet_common.openai import errors
from meshnet_common.openai.apis import Api
from meshnet_common.openai.json_body import decode_unambiguous
from meshnet_common.openai.responses import counted_tokens
from meshnet_common.openai.sse import KEEP_ALIVE_COMMENT
from meshnet_common.openai.stream_endings import StreamEnding
from meshnet_common.protocol.resume import (
    RESUME_HEADER,
    TOKEN_IDS_HEADER,
    ResumeRecord,
    ResumeRequest,
)
from meshnet_common.protocol.tickets import TICKET_HEADER
from meshnet_worker.answers.answer import Answer
from meshnet_worker.answers.asking import Asking, Pace, writer_of
from meshnet_worker.answers.events import StreamEvents, WholeEvents, with_notes, without_notes
from meshnet_worker.answers.failing import told_error
from meshnet_worker.answers.telling import Drawn, Telling, ToldSessions
from meshnet_worker.head import Heads
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.routes import Routes
from meshnet_worker.shards import NotServingError, ShardTable
from meshnet_worker.text.tokenizer import TextCodec

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

KEEP_ALIVE_SECONDS = 5.0
"""A client's stream is never silent for longer, once its answer is admitted."""


@dataclass(frozen=True, slots=True)
class ChatRoom:
    """What answers need of this Worker."""

    shards: ShardTable
    codecs: dict[tuple[str, str], TextCodec]
    heads: Heads
    routes: Routes
    clock: Clock
    kv: KvBudget
    chunk_tokens: int


class Chat:
    """Answers requests for text with this Worker as the Head Worker."""

    def __init__(self, room: ChatRoom) -> None:
        self._room = room
        self._told: dict[str, Telling] = {}

    def move_away(self) -> None:
        """Let every answer that a Tracker reads go on at another Head Worker."""
        for telling in self._told.values():
            telling.moves = True

    def answering(self, api: Api) -> Handler:
        """Make what handles the requests of an API; raises ApiError until the answer has begun."""

        async def answer(request: web.Request) -> web.StreamResponse:
            return await self._answer(request, api)

        return answer

    def counting(self, api: Api) -> Handler:
        """Make what counts the tokens of an API's prompts."""

        async def count(request: web.Request) -> web.StreamResponse:
            return await self._count(request, api)

        return count

    async def _answer(self, request: web.Request, api: Api) -> web.StreamResponse:
        body, record = await read_json_body(request), None
        if request.headers.get(RESUME_HEADER) == "1":
            resumed = await parse_body(_resumed, body)
            body, record = bytes(resumed.request), resumed.record
        asking = await self._asking(request, body, api, record)
        if record is not None or request.headers.get(TOKEN_IDS_HEADER) == "1":
            return await self._tell(request, asking)
        # A long prompt takes milliseconds, in which every other stream would stand still.
        answer = await asyncio.to_thread(self._begin, asking)
        if asking.request.stream:
            client = _Client(request, api.ending)
            return await self._stream(client, asking, answer)
        return await self._whole(asking, answer)

    async def _count(self, request: web.Request, api: Api) -> web.Response:
        asking = await self._asking(request, await read_json_body(request), api, None)
        return json_response(counted_tokens(await asyncio.to_thread(asking.count_prompt)))

    async def _asking(
        self, request: web.Request, body: bytes, api: Api, record: ResumeRecord | None
    ) -> Asking:
        if len(body) > MAX_BODY_BYTES:
            raise errors.request_too_large(MAX_BODY_BYTES)
        asked = await parse_body(api.parse, body)
        token, key = request.headers.get(TICKET_HEADER), request.headers.get("Authorization")
        route = await self._room.routes.first(token, asked.model, key)
        shard = self._room.shards.serving(route.ticket, route.ticket.hops[0].shard_range)
        codec = self._room.codecs.get(shard.key)
        if codec is None:
            raise NotServingError(f"{asked.model} is still loading.")
        return Asking(asked, record, route, shard, codec)

    async def _tell(self, request: web.Request, asking: Asking) -> web.StreamResponse:
        ticket, heads = asking.route.ticket, self._room.heads
        before = self._told.get(ticket.session_id)
        if before is not None and before.incarnation < ticket.incarnation:
            # Its Tracker is here again, while the connection before still seems sound.
            await before.end()
        sessions = ToldSessions(heads, asking.session_ids)
        telling = Telling(request, ticket.incarnation, sessions)
        self._told.setdefault(ticket.session_id, telling)
        try:
            return await telling.tell(
                partial(self._begin_events, asking), partial(self._tokens, asking)
            )
        finally:
            if self._told.get(ticket.session_id) is telling:
                del self._told[ticket.session_id]

    def _begin_events(self, asking: Asking) -> StreamEvents | WholeEvents:
        answer, before = self._begin(asking), None
        if asking.record is not None:
            before = answer.resume(asking.record, asking.shard.preset.vocabulary_size)
        if asking.request.stream:
            return StreamEvents(answer, writer_of(answer), with_notes, before)
        return WholeEvents(answer, writer_of(answer), before)

    def _begin(self, asking: Asking) -> Answer:
        pace = Pace(self._room.chunk_tokens, self._room.kv.block_positions)
        return asking.begin(self._room.clock.now(), pace)

    async def _tokens(self, asking: Asking, answer: Answer) -> AsyncGenerator[Drawn | None, None]:
        """Yield an answer's tokens, and None for a sign of life, until all choices are over."""
        choices = {choice.generation.session_id: choice for choice in answer.choices}
        async with self._room.heads.generating(*asking.missing(answer)) as tokens:
            async for token in tokens:
                if token is None:
                    yield None
                    continue
                choice = choices[token.session_id]
                yield choice.index, token.token_id, token.logprobs
                if choice.is_over:
                    tokens.leave(token.session_id)

    async def _whole(self, asking: Asking, answer: Answer) -> web.Response:
        events = WholeEvents(answer, writer_of(answer))
        try:
            async with aclosing(self._tokens(asking, answer)) as tokens:
                async for drawn in tokens:
                    if drawn is not None:
                        events.token(*drawn)
        except MeshnetError as error:
            raise told_error(error, answer) from error
        return json_response(events.whole())

    async def _stream(
        self, client: "_Client", asking: Asking, answer: Answer
    ) -> web.StreamResponse:
        events = StreamEvents(answer, writer_of(answer), without_notes)
        try:
            async with aclosing(self._tokens(asking, answer)) as tokens:
                async for drawn in tokens:
                    if drawn is None:
                        await client.wait()
                    else:
                        await client.write(events.token(*drawn))
        except MeshnetError as error:
            if client.response is None:
                raise told_error(error, answer) from error
            return await client.fail(told_error(error, answer).to_json(), events.told)
        return await client.end(b"".join(events.ending()))


def _resumed(body: bytes) -> ResumeRequest:
    # The client's own body within it is read like any other; the record is a Tracker's.
    return decode_unambiguous(body, ResumeRequest)


class _Client:
    """A client that reads this Worker's stream itself; its headers wait for the first byte."""

    def __init__(self, request: web.Request, ending: StreamEnding) -> None:
        self._request = request
        self._ending = ending
        self._wrote_at = loop_time()
        self.response: web.StreamResponse | None = None

    async def write(self, data: bytes) -> web.StreamResponse:
        if self.response is None:
            self.response = await open_event_stream(self._request)
        if data:
            await self.response.write(data)
            self._wrote_at = loop_time()
        return self.response

    async def wait(self) -> None:
        """Show a sign of life if the client has seen none for a while."""
        if loop_time() - self._wrote_at >= KEEP_ALIVE_SECONDS:
            # Before the first event it commits nobody: who proxies it may still try elsewhere.
            await self.write(KEEP_ALIVE_COMMENT)

    async def end(self, data: bytes) -> web.StreamResponse:
        """Write the last events, and what ends every stream."""
        return await self._close(data + self._ending.done)

    async def fail(self, envelope: bytes, events: int) -> web.StreamResponse:
        """End with an error, behind so many events."""
        return await self._close(self._ending.failed(envelope, events))

    async def _close(self, data: bytes) -> web.StreamResponse:
        response = await self.write(data)
        await response.write_eof()
        return response
