"""`POST /v1/embeddings` on a Worker that holds an encoder: texts in, a vector of each out."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from meshnet_common.edge.http import json_response, read_json_body
from meshnet_common.edge.long_bodies import parse_body
from meshnet_common.openai import errors
from meshnet_common.openai.embeddings import (
    MAX_INPUT_TOKENS,
    EmbeddingRequest,
    embedding_answer,
    parse_embedding_request,
)
from meshnet_common.openai.errors import ApiError
from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.tickets import TICKET_HEADER
from meshnet_worker.encodings import EncodeFailedError
from meshnet_worker.engine_process import EngineLostError
from meshnet_worker.engine_supervisor import EngineSlot
from meshnet_worker.routes import Routes
from meshnet_worker.shards import NotServingError, ShardTable
from meshnet_worker.text.long_texts import GivenText, ReadIds, ReadText, read_text
from meshnet_worker.text.tokenizer import TextCodec


@dataclass(frozen=True, slots=True)
class EmbeddingRoom:
    """What embeddings need of this Worker."""

    shards: ShardTable
    codecs: dict[tuple[str, str], TextCodec]
    routes: Routes
    slot: EngineSlot


class Embeddings:
    """Answers embedding requests by this Worker's own encoders."""

    def __init__(self, room: EmbeddingRoom) -> None:
        self._room = room

    async def embed(self, request: web.Request) -> web.Response:
        """Handle one request; raises ApiError, NotServingError and TicketError."""
        asked = await parse_body(parse_embedding_request, await read_json_body(request))
        token, key = request.headers.get(TICKET_HEADER), request.headers.get("Authorization")
        route = await self._room.routes.first(token, asked.model, key)
        shard = self._room.shards.encoding(route.ticket)
        codec = self._room.codecs.get(shard.key)
        if codec is None:
            raise NotServingError(f"{asked.model} is still loading.")
        check_kind(asked, shard.preset)
        # Many texts take milliseconds, in which every stream would stand still.
        texts = await asyncio.to_thread(read_inputs, asked, codec.text_ids, shard.preset)
        engine = await self._room.slot.get()
        try:
            vectors = await engine.encodings.encode(shard.number, texts)
        except (EncodeFailedError, EngineLostError) as error:
            raise NotServingError(str(error)) from error
        body = await asyncio.to_thread(embedding_answer, asked, vectors, sum(map(len, texts)))
        return json_response(body)


def check_kind(asked: EmbeddingRequest, preset: ModelPreset) -> None:
    """Refuse a model that makes no embeddings, or not of this size; raises ApiError 400."""
    if not preset.is_encoder:
        raise errors.invalid_request(f"`{asked.model}` makes no embeddings.", "model")
    if asked.dimensions not in {None, preset.hidden_size}:
        message = f"`{asked.model}` makes embeddings of {preset.hidden_size} dimensions only."
        raise errors.invalid_request(message, "dimensions")


def read_inputs(
    asked: EmbeddingRequest, ids_of: ReadIds, preset: ModelPreset
) -> list[tuple[int, ...]]:
    """Read all inputs as token ids; raises ApiError 400 at the first that cannot be taken."""
    texts: list[tuple[int, ...]] = []
    tokens, room = 0, preset.context_tokens
    inputs: Sequence[GivenText] = asked.inputs
    for place, given in enumerate(inputs):
        read = read_text(given, ids_of, room)
        if len(read.ids) > room:
            raise _too_long(f"input[{place}]" if len(inputs) > 1 else "input", read, room)
        if any(token_id >= preset.vocabulary_size for token_id in read.ids):
            message = f"A token id is beyond the vocabulary of {preset.vocabulary_size}."
            raise errors.invalid_request(message, "input")
        tokens += len(read.ids)
        if tokens > MAX_INPUT_TOKENS:
            message = f"All inputs together have more than {MAX_INPUT_TOKENS} tokens; send fewer."
            raise errors.invalid_request(message, "input")
        texts.append(read.ids)
    return texts


def _too_long(param: str, read: ReadText, most: int) -> ApiError:
    tokens = len(read.ids)
    counted = f"{tokens}" if read.is_whole else f"at least {tokens}"
    message = f"`{param}` has {counted} tokens; this model takes {most}. Split the text."
    return errors.too_many_tokens(message, param, tokens, most)
