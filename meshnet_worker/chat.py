"""`POST /v1/chat/completions` on a Head Worker: messages in, streamed or whole text out."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from aiohttp import web

from meshnet_common.edge.clock import Clock
from meshnet_common.edge.http import json_response, open_event_stream, read_json_body
from meshnet_common.errors import MeshnetError
from meshnet_common.openai import errors
from meshnet_common.openai.errors import INVALID_REQUEST, ApiError, ContextLengthBody
from meshnet_common.openai.requests import ChatRequest, parse_chat_request
from meshnet_common.openai.responses import (
    AnswerIdentity,
    ChatChunks,
    FinishReason,
    Usage,
    chat_completion,
)
from meshnet_common.openai.sse import (
    DONE_EVENT,
    KEEP_ALIVE_COMMENT,
    comment,
    data_event,
    failed_stream_ending,
)
from meshnet_common.protocol.bodies import KvFigures, Sampling
from meshnet_worker.generation import Generation
from meshnet_worker.head import Heads
from meshnet_worker.head_session import HopFailedError, NoRoomError, RouteSilentError
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.routes import Routes
from meshnet_worker.shards import LocalShard, NotServingError, ShardTable
from meshnet_worker.text.answer import AnswerText
from meshnet_worker.text.tokenizer import TextCodec
from meshnet_worker.tickets import SignedRoute

TICKET_HEADER = "x-meshnet-ticket"
TOKEN_IDS_HEADER = "x-meshnet-token-ids"  # noqa: S105 - a header's name
RETRY_AFTER_SECONDS = 5

_ROUTE_ERRORS = (HopFailedError, NoRoomError, RouteSilentError)


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


@dataclass(slots=True)
class _Answer:
    """One answer under way."""

    request: ChatRequest
    route: SignedRoute
    identity: AnswerIdentity
    codec: TextCodec
    generation: Generation
    text: AnswerText
    shows_token_ids: bool
    has_begun: bool = False
    """Whether the first event of its stream was written."""
    token_ids: list[int] = field(default_factory=list)

    @property
    def finish_reason(self) -> FinishReason:
        is_stop = self.text.stopped or self.generation.ended_by_model
        return FinishReason.STOP if is_stop else FinishReason.LENGTH

    @property
    def usage(self) -> Usage:
        return Usage.of(len(self.generation.prompt_ids), len(self.token_ids))

    @property
    def sampling(self) -> Sampling:
        request, seed = self.request, self.request.seed
        return Sampling(
            temperature=request.temperature,
            top_p=request.top_p,
            seed=self.route.ticket.seed if seed is None else seed,
        )


class Chat:
    """Answers chat requests with this Worker as the Head Worker."""

    def __init__(self, room: ChatRoom) -> None:
        self._room = room

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Handle one request; raises ApiError until the first token has come."""
        chat = parse_chat_request(await read_json_body(request))
        token, key = request.headers.get(TICKET_HEADER), request.headers.get("Authorization")
        route = await self._room.routes.first(token, chat.model, key)
        shard = self._room.shards.serving(route.ticket, route.ticket.hops[0].shard_range)
        answer = await self._begin(chat, route, shard)
        answer.shows_token_ids = request.headers.get(TOKEN_IDS_HEADER) == "1"
        if chat.stream:
            return await self._stream(request, answer)
        return await self._whole(answer)

    async def _begin(self, chat: ChatRequest, route: SignedRoute, shard: LocalShard) -> _Answer:
        codec = self._room.codecs.get(shard.key)
        if codec is None:
            raise NotServingError(f"{chat.model} is still loading.")
        # A long prompt takes milliseconds, in which every other stream would stand still.
        prompt_ids = await asyncio.to_thread(codec.prompt_ids, chat.messages)
        room_left = shard.preset.context_tokens - len(prompt_ids)
        if room_left < 1:
            raise errors.context_length_exceeded(len(prompt_ids), shard.preset.context_tokens)
        ticket = route.ticket
        return _Answer(
            request=chat,
            route=route,
            identity=AnswerIdentity(
                id=f"chatcmpl-{ticket.session_id}",
                created=int(self._room.clock.now()),
                model=chat.model,
                system_fingerprint=f"fp_{shard.variant.digest[:16]}",
            ),
            codec=codec,
            generation=Generation(
                session_id=ticket.session_id,
                epoch=(ticket.incarnation, 0),
                prompt_ids=tuple(prompt_ids),
                max_new_tokens=min(chat.max_tokens or room_left, room_left),
                end_ids=frozenset() if chat.ignore_eos else codec.eos_ids,
                min_new_tokens=chat.min_tokens,
                chunk_tokens=self._room.chunk_tokens,
                block_positions=self._room.kv.block_positions,
            ),
            text=AnswerText(codec.detokenizer(), chat.stop),
            shows_token_ids=False,
        )

    async def _whole(self, answer: _Answer) -> web.Response:
        try:
            async with aclosing(self._pieces(answer)) as stream:
                pieces = [piece async for piece in stream]
        except _ROUTE_ERRORS as error:
            raise _before_commit(error, answer) from error
        text = "".join(piece.text for piece in pieces)
        body = chat_completion(answer.identity, text, answer.finish_reason, answer.usage)
        return json_response(body)

    async def _stream(self, request: web.Request, answer: _Answer) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        chunks = ChatChunks(answer.identity, answer.request.include_usage)
        try:
            async with aclosing(self._pieces(answer)) as pieces:
                async for piece in pieces:
                    if response is None:
                        response = await open_event_stream(request)
                    await response.write(_events(answer, chunks, piece))
        except _ROUTE_ERRORS as error:
            if response is None:
                raise _before_commit(error, answer) from error
            await response.write(failed_stream_ending(_in_the_middle(error, answer).body))
        else:
            assert response is not None
            await response.write(_ending(answer, chunks))
        await response.write_eof()
        return response

    async def _pieces(self, answer: _Answer) -> AsyncGenerator["_Piece", None]:
        """Yield the answer's text as its tokens come, and what was held back at its end."""
        generation = answer.generation
        session = self._room.heads.generating(answer.route, generation, answer.sampling)
        async with session as tokens:
            async for token_id in tokens:
                if token_id is None:
                    yield _STILL_WAITING
                    continue
                answer.token_ids.append(token_id)
                is_end = generation.ended_by_model and len(answer.token_ids) == len(
                    generation.chosen
                )
                yield _Piece("" if is_end else answer.text.push(token_id), (token_id,))
                if answer.text.stopped:
                    break
        yield _Piece(answer.text.finish(), ())


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some of the answer's text, and the tokens that gave it."""

    text: str
    token_ids: Sequence[int]


_STILL_WAITING = _Piece("", ())
"""Nothing yet, as a sign of life."""


def _events(answer: _Answer, chunks: ChatChunks, piece: _Piece) -> bytes:
    if piece is _STILL_WAITING:
        # Before the first event it commits nobody: who proxies it may still try elsewhere.
        return KEEP_ALIVE_COMMENT
    events = b"" if answer.has_begun else data_event(chunks.role())
    answer.has_begun = True
    if answer.shows_token_ids and piece.token_ids:
        events += comment(f"token-ids {' '.join(map(str, piece.token_ids))}")
    if piece.text:
        events += data_event(chunks.content(piece.text))
    return events


def _ending(answer: _Answer, chunks: ChatChunks) -> bytes:
    events = data_event(chunks.finish(answer.finish_reason))
    if answer.request.include_usage:
        events += data_event(chunks.usage(answer.usage))
    return events + DONE_EVENT


def _before_commit(error: MeshnetError, answer: _Answer) -> ApiError:
    """What a client sees when the Route failed before any of the answer went out."""
    if isinstance(error, HopFailedError) and error.kv is not None:
        return _beyond_capacity(error.kv, answer)
    if isinstance(error, NoRoomError):
        return errors.overloaded(str(error), RETRY_AFTER_SECONDS)
    return errors.upstream_failed(str(error))


def _in_the_middle(error: MeshnetError, answer: _Answer) -> ApiError:
    """What a client sees in its stream once that has begun."""
    if answer.token_ids and not isinstance(error, NoRoomError):
        return errors.worker_lost(str(error))
    return _before_commit(error, answer)


def _beyond_capacity(kv: KvFigures, answer: _Answer) -> ApiError:
    prompt_tokens = len(answer.generation.prompt_ids)
    message = (
        f"The prompt has {prompt_tokens} tokens, but the memory lent for this model holds "
        f"{kv.capacity}: {kv.needed} KV blocks are needed, {kv.free} of {kv.total} are free. "
        "Shorten the messages."
    )
    code = "context_length_exceeded"
    figures = {"n_prompt_tokens": prompt_tokens, "n_ctx": kv.capacity}
    return ApiError(400, ContextLengthBody(message, INVALID_REQUEST, "messages", code, **figures))
