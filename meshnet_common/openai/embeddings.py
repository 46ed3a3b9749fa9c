"""Embedding requests and their answers: OpenAI's shapes, every rule checked on the way; pure.

Both official clients ask for base64 where their callers say nothing: the little-endian float32 of
each vector. Order and indexes of the answer are those of the inputs.
"""

import base64
import struct
from typing import Annotated

import msgspec
from msgspec import Meta

from meshnet_common.openai.errors import invalid_request
from meshnet_common.openai.json_body import decode_body
from meshnet_common.openai.text_inputs import TextInput, Texts, TokenLists, read_text_input

MAX_INPUTS = 2048
MAX_INPUT_TOKENS = 300_000
"""Tokens of all inputs of a request."""
FLOAT_BYTES = 4

_Name = Annotated[str, Meta(min_length=1, max_length=256)]


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request after validation: texts, or token ids that somebody else made of texts."""

    model: str
    inputs: Texts | TokenLists
    as_base64: bool = False
    dimensions: int | None = None


class EmbeddingBody(msgspec.Struct, frozen=True):
    """The body as clients send it; null means absent."""

    model: _Name
    input: TextInput
    encoding_format: str | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    user: str | None = None


class Embedding(msgspec.Struct, frozen=True):
    """One vector: its numbers, or base64 of them as little-endian float32."""

    index: int
    embedding: tuple[float, ...] | str
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Token counts of all inputs, which are the same number."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(msgspec.Struct, frozen=True):
    """The whole body of the answer."""

    model: str
    data: tuple[Embedding, ...]
    usage: EmbeddingUsage
    object: str = "list"


class _Outline(msgspec.Struct, frozen=True):
    """What an answer has cost."""

    usage: EmbeddingUsage


def parse_embedding_request(body: bytes) -> EmbeddingRequest:
    """Check the whole body of `POST /v1/embeddings`; raises ApiError 400, nothing else."""
    fields = decode_body(body, EmbeddingBody)
    if fields.encoding_format not in {None, "float", "base64"}:
        message = "`encoding_format` must be `float` or `base64`."
        raise invalid_request(message, "encoding_format")
    return EmbeddingRequest(
        model=fields.model,
        inputs=_inputs(fields.input),
        as_base64=fields.encoding_format == "base64",
        dimensions=fields.dimensions,
    )


def embedding_answer(request: EmbeddingRequest, vectors: bytes, tokens: int) -> bytes:
    """Build the answer; `vectors` is `[inputs, dimensions]`, little-endian float32, row-major."""
    row_bytes = len(vectors) // len(request.inputs)
    rows = (
        vectors[start : start + row_bytes] for start in range(0, len(vectors), max(1, row_bytes))
    )
    write = _as_base64 if request.as_base64 else _as_floats
    return msgspec.json.encode(
        EmbeddingAnswer(
            model=request.model,
            data=tuple(Embedding(index, write(row)) for index, row in enumerate(rows)),
            usage=EmbeddingUsage(tokens, tokens),
        )
    )


def tokens_in(answer: object) -> int:
    """Read what an answer has cost; 0 for what is none, and no more than a request may ask for."""
    if not isinstance(answer, bytes):
        return 0
    try:
        usage = msgspec.json.decode(answer, type=_Outline).usage
    except (msgspec.DecodeError, RecursionError):
        return 0
    return max(0, min(usage.total_tokens, MAX_INPUT_TOKENS))


def _inputs(given: TextInput) -> Texts | TokenLists:
    inputs = read_text_input(given, "input")
    if len(inputs) > MAX_INPUTS:
        raise invalid_request(f"`input` has more than {MAX_INPUTS} entries.", "input")
    return inputs


def _as_floats(row: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(row) // FLOAT_BYTES}f", row)


def _as_base64(row: bytes) -> str:
    return base64.b64encode(row).decode()
