"""Bodies of the public API's answers: the chunks of a stream, the whole answer, the model list.

Every builder returns JSON bytes; `sse.data_event` makes events of chunks. The caller gives ids and
times, so that a replayed answer is the same answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class FinishReason(StrEnum):
    """Why an answer ended: its end or a stop string, or a token limit."""

    STOP = "stop"
    LENGTH = "length"


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one answer; `total_tokens` must be the sum of the other two."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int) -> "Usage":
        return cls(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)


@dataclass(frozen=True, slots=True)
class AnswerIdentity:
    """What every chunk of one answer repeats; `created` is whole seconds since the epoch."""

    id: str
    created: int
    model: str
    system_fingerprint: str


@dataclass(frozen=True, slots=True)
class ChatChunks:
    """Builds the chunks of one chat stream, in this order: role, content, finish, usage.

    With `include_usage`, which the client asks for, every chunk but the last says `usage: null`.
    """

    identity: AnswerIdentity
    include_usage: bool = False

    def role(self) -> bytes:
        return self._chunk(_Delta(role="assistant", content=""))

    def content(self, text: str) -> bytes:
        """Carry a piece of text, which must hold whole characters only."""
        return self._chunk(_Delta(content=text))

    def finish(self, reason: FinishReason) -> bytes:
        return self._chunk(_Delta(), reason)

    def usage(self, usage: Usage) -> bytes:
        return msgspec.json.encode(_Chunk.build(self.identity, (), usage))

    def _chunk(self, delta: "_Delta", finish_reason: FinishReason | None = None) -> bytes:
        choices = (_ChunkChoice(delta=delta, finish_reason=finish_reason),)
        usage = None if self.include_usage else UNSET
        return msgspec.json.encode(_Chunk.build(self.identity, choices, usage))


def chat_completion(
    identity: AnswerIdentity, text: str, finish_reason: FinishReason, usage: Usage
) -> bytes:
    """Build the answer to a request without `stream`."""
    choice = _Choice(message=_Message(content=text), finish_reason=finish_reason)
    return msgspec.json.encode(
        _Completion(
            id=identity.id,
            created=identity.created,
            model=identity.model,
            choices=(choice,),
            usage=usage,
            system_fingerprint=identity.system_fingerprint,
        )
    )


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of `GET /v1/models`; `max_model_len` and `meshnet` extend OpenAI's object."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "meshnet"
    max_model_len: int | UnsetType = UNSET
    """Longest prompt plus answer, in tokens, that can be admitted now."""
    meshnet: dict[str, Any] | UnsetType = UNSET
    """Facts for people and tools that know meshnet, such as the coverage."""


class ModelList(msgspec.Struct, frozen=True):
    """The whole body of `GET /v1/models`."""

    data: tuple[ListedModel, ...]
    object: str = "list"


def model_list(models: Iterable[ListedModel]) -> bytes:
    """Build the answer of `GET /v1/models`."""
    return msgspec.json.encode(ModelList(tuple(models)))


def one_model(model: ListedModel) -> bytes:
    """Build the answer of `GET /v1/models/{id}`."""
    return msgspec.json.encode(model)


class _Delta(msgspec.Struct, frozen=True, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class _ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    delta: _Delta
    logprobs: None = None
    finish_reason: FinishReason | None


class _Chunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[_ChunkChoice, ...]
    usage: Usage | UnsetType | None

    @classmethod
    def build(
        cls,
        identity: AnswerIdentity,
        choices: tuple[_ChunkChoice, ...],
        usage: Usage | UnsetType | None,
    ) -> "_Chunk":
        return cls(
            id=identity.id,
            created=identity.created,
            model=identity.model,
            system_fingerprint=identity.system_fingerprint,
            choices=choices,
            usage=usage,
        )


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: _Message
    logprobs: None = None
    finish_reason: FinishReason


class _Completion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: tuple[_Choice, ...]
    usage: Usage
    system_fingerprint: str
