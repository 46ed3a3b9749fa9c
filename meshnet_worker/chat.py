"""`POST /v1/chat/completions` on a Head Worker: messages in, streamed or whole text out.

Who asks for token ids is a Tracker: it gets a stream that another Head Worker can go on with
(`answers.telling`), and may ask to go on with one. All others get what OpenAI's clients read.
"""

import asyncio
from collections.abc import AsyncGenerator
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
from meshnet_common.errors import MeshnetError
from meshnet_common.openai import errors
from meshnet_common.openai.json_body import decode_body
from meshnet_common.openai.requests import ChatRequest, parse_chat_request
from meshnet_common.openai.sampling_options import check_vocabulary
from meshnet_common.openai.sse import KEEP_ALIVE_COMMENT, failed_stream_ending
from meshnet_common.openai.writer import AnswerIdentity
from meshnet_common.protocol.resume import (
    RESUME_HEADER,
    TOKEN_IDS_HEADER,
    ResumeRecord,
    ResumeRequest,
)
from meshnet_common.protocol.sampling import Sampling
from meshnet_worker.answers.answer import Answer
from meshnet_worker.answers.events import StreamEvents, WholeEvents, with_note, without_note
from meshnet_worker.answers.failing import told_error
from meshnet_worker.answers.telling import Telling
from meshnet_worker.generation import Generation
from meshnet_worker.head import Heads
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.routes import Routes
from meshnet_worker.shards import LocalShard, NotServingError, ShardTable
from meshnet_worker.text.answer import AnswerText
from meshnet_worker.text.tokenizer import TextCodec
from meshnet_worker.tickets import SignedRoute

TICKET_HEADER = "x-meshnet-ticket"
KEEP_ALIVE_SECONDS = 5.0
"""A client's stream is never silent for longer, once its answer is admitted."""


@dataclass(frozen=True, slots=True)
class ChatRoom:
    """What chat needs of this Worker."""

    shards: ShardTable
    codecs: dict[tuple[str, str], TextCodec]
    heads: Heads
    routes: Routes
    clock: Clock
    kv: KvBudget
    chunk_tokens: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request, and what this Worker has to answer it with."""

    chat: ChatRequest
    record: ResumeRecord | None
    route: SignedRoute
    shard: LocalShard
    codec: TextCodec

    @property
    def sampling(self) -> Sampling:
        chat, seed = self.chat, self.chat.seed
        return Sampling(
            temperature=chat.temperature,
            top_p=chat.top_p,
            seed=self.route.ticket.seed if seed is None else seed,
            top_k=min(chat.top_k, self.shard.preset.vocabulary_size),
            min_p=chat.min_p,
            repetition_penalty=chat.repetition_penalty,
            frequency_penalty=chat.frequency_penalty,
            presence_penalty=chat.presence_penalty,
            logit_bias=chat.logit_bias,
            logprobs=chat.top_logprobs if chat.logprobs else None,
        )


class Chat:
    """Answers chat requests with this Worker as the Head Worker."""

    def __init__(self, room: ChatRoom) -> None:
        self._room = room
        self._told: dict[str, Telling] = {}

    def move_away(self) -> None:
        """Let every answer that a Tracker reads go on at another Head Worker."""
        for telling in self._told.values():
            telling.moves = True

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Handle one request; raises ApiError until the answer has begun."""
        body, record = await read_json_body(request), None
        if request.headers.get(RESUME_HEADER) == "1":
            resumed = decode_body(body, ResumeRequest)
            body, record = bytes(resumed.request), resumed.record
        if len(body) > MAX_BODY_BYTES:
            raise errors.request_too_large(MAX_BODY_BYTES)
        chat = parse_chat_request(body)
        token, key = request.headers.get(TICKET_HEADER), request.headers.get("Authorization")
        route = await self._room.routes.first(token, chat.model, key)
        shard = self._room.shards.serving(route.ticket, route.ticket.hops[0].shard_range)
        codec = self._room.codecs.get(shard.key)
        if codec is None:
            raise NotServingError(f"{chat.model} is still loading.")
        asked = _Asked(chat, record, route, shard, codec)
        if record is not None or request.headers.get(TOKEN_IDS_HEADER) == "1":
            return await self._tell(request, asked)
        # A long prompt takes milliseconds, in which every other stream would stand still.
        answer = await asyncio.to_thread(self._begin, asked)
        if chat.stream:
            return await self._stream(request, asked, answer)
        return await self._whole(asked, answer)

    async def _tell(self, request: web.Request, asked: _Asked) -> web.StreamResponse:
        ticket = asked.route.ticket
        before = self._told.get(ticket.session_id)
        if before is not None and before.incarnation < ticket.incarnation:
            # Its Tracker is here again, while the connection before still seems sound.
            await before.end()
        hand_over = partial(self._room.heads.hand_over, ticket.session_id)
        telling = Telling(request, ticket.incarnation, hand_over)
        self._told.setdefault(ticket.session_id, telling)
        try:
            return await telling.tell(
                partial(self._begin_events, asked), partial(self._tokens, asked)
            )
        finally:
            if self._told.get(ticket.session_id) is telling:
                del self._told[ticket.session_id]

    def _begin_events(self, asked: _Asked) -> StreamEvents | WholeEvents:
        answer, text = self._begin(asked), ""
        if asked.record is not None:
            text = answer.resume(asked.record, asked.shard.preset.vocabulary_size)
        if asked.chat.stream:
            return StreamEvents(answer, with_note)
        return WholeEvents(answer, text)

    def _begin(self, asked: _Asked) -> Answer:
        chat, ticket, context = asked.chat, asked.route.ticket, asked.shard.preset.context_tokens
        check_vocabulary(chat.logit_bias, asked.shard.preset.vocabulary_size)
        prompt_ids = asked.codec.prompt_ids(chat.messages)
        room_left = context - len(prompt_ids)
        if room_left < 1:
            raise errors.context_length_exceeded(len(prompt_ids), context)
        record = asked.record
        identity = AnswerIdentity(
            id=record.id if record else f"chatcmpl-{ticket.session_id}",
            created=record.created if record else int(self._room.clock.now()),
            model=chat.model,
            system_fingerprint=f"fp_{asked.shard.variant.digest[:16]}",
        )
        generation = Generation(
            session_id=ticket.session_id,
            epoch=(ticket.incarnation, 0),
            prompt_ids=tuple(prompt_ids),
            max_new_tokens=min(chat.max_tokens or room_left, room_left),
            end_ids=frozenset() if chat.ignore_eos else asked.codec.eos_ids,
            min_new_tokens=chat.min_tokens,
            chunk_tokens=self._room.chunk_tokens,
            block_positions=self._room.kv.block_positions,
        )
        text = AnswerText(asked.codec.detokenizer(), chat.stop)
        return Answer(chat, identity, generation, text)

    async def _tokens(self, asked: _Asked, answer: Answer) -> AsyncGenerator[int | None, None]:
        """Yield an answer's tokens, and None for a sign of life, until its text is over."""
        session = self._room.heads.generating(asked.route, answer.generation, asked.sampling)
        async with session as tokens:
            async for token_id in tokens:
                yield token_id
                if answer.text.stopped:
                    break

    async def _whole(self, asked: _Asked, answer: Answer) -> web.Response:
        events = WholeEvents(answer)
        try:
            async with aclosing(self._tokens(asked, answer)) as tokens:
                async for token_id in tokens:
                    if token_id is not None:
                        events.token(token_id)
        except MeshnetError as error:
            raise told_error(error, answer) from error
        return json_response(events.completion())

    async def _stream(
        self, request: web.Request, asked: _Asked, answer: Answer
    ) -> web.StreamResponse:
        client = _Client(request)
        events = StreamEvents(answer, without_note)
        try:
            async with aclosing(self._tokens(asked, answer)) as tokens:
                async for token_id in tokens:
                    if token_id is None:
                        await client.wait()
                    else:
                        await client.write(events.token(token_id))
        except MeshnetError as error:
            if client.response is None:
                raise told_error(error, answer) from error
            return await client.end(failed_stream_ending(told_error(error, answer).body))
        return await client.end(b"".join(events.ending()))


class _Client:
    """A client that reads this Worker's stream itself; its headers wait for the first byte."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
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
        response = await self.write(data)
        await response.write_eof()
        return response
