"""Chat completions: the chunks of a stream and the whole answer, from pieces of any answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from meshnet_common.openai.pieces import (
    FinishReason,
    Piece,
    TextPiece,
    TokenLogprob,
    ToolCallPiece,
    WholeChoice,
)
from meshnet_common.openai.writer import AnswerIdentity, Usage


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    """Of each token of a choice's text, or of a piece of it, how likely it was."""

    content: tuple[TokenLogprob, ...]
    refusal: None = None


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class _ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _FunctionDelta(msgspec.Struct, frozen=True):
    name: str | UnsetType = UNSET
    arguments: str = ""


class _ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: _FunctionDelta


class _Delta(msgspec.Struct, frozen=True, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: tuple[_ToolCallDelta, ...] | UnsetType = UNSET


class _ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: _Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The data of one event of a stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[_ChunkChoice, ...]
    usage: Usage | UnsetType | None


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: tuple[_ToolCall, ...] | UnsetType = UNSET


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: _Message
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole body of an answer without `stream`."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: tuple[_Choice, ...]
    usage: Usage
    system_fingerprint: str


@dataclass(frozen=True, slots=True)
class ChatWriter:
    """Writes one chat answer.

    With `include_usage`, which the client asks for, every chunk but the last says `usage: null`.
    """

    identity: AnswerIdentity
    include_usage: bool = False
    has_logprobs: bool = False

    def begin(self, choice: int) -> Sequence[bytes]:
        return [self._chunk(_ChunkChoice(index=choice, delta=_Delta(role="assistant", content="")))]

    def pieces(self, choice: int, pieces: Sequence[Piece]) -> Sequence[bytes]:
        """Carry what came at once; text must hold whole characters only.

        Each fragment of a call has a chunk of its own: clients join fragments of different chunks.
        """
        return [self._chunk(self._told(choice, group)) for group in _by_chunk(pieces)]

    def finish(self, choice: int, reason: FinishReason) -> Sequence[bytes]:
        return [self._chunk(_ChunkChoice(index=choice, delta=_Delta(), finish_reason=reason))]

    def usage(self, usage: Usage) -> Sequence[bytes]:
        return [self._encode((), usage)]

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        return msgspec.json.encode(
            ChatCompletion(
                id=self.identity.id,
                created=self.identity.created,
                model=self.identity.model,
                choices=tuple(map(self._whole_choice, choices)),
                usage=usage,
                system_fingerprint=self.identity.system_fingerprint,
            )
        )

    def _told(self, choice: int, pieces: Sequence[Piece]) -> _ChunkChoice:
        texts = [piece for piece in pieces if isinstance(piece, TextPiece)]
        calls = [piece for piece in pieces if isinstance(piece, ToolCallPiece)]
        delta = _Delta(
            content="".join(text.text for text in texts) if texts else UNSET,
            tool_calls=tuple(map(_call_delta, calls)) if calls else UNSET,
        )
        logprobs = self._logprobs(texts) if texts else None
        return _ChunkChoice(index=choice, delta=delta, logprobs=logprobs)

    def _whole_choice(self, choice: WholeChoice) -> _Choice:
        texts = [piece for piece in choice.pieces if isinstance(piece, TextPiece)]
        calls = tuple(_whole_calls(choice.pieces))
        text = "".join(piece.text for piece in texts)
        message = _Message(content=text if text or not calls else None, tool_calls=calls or UNSET)
        return _Choice(
            index=choice.index,
            message=message,
            logprobs=self._logprobs(texts),
            finish_reason=choice.finish_reason,
        )

    def _logprobs(self, texts: Iterable[TextPiece]) -> ChoiceLogprobs | None:
        if not self.has_logprobs:
            return None
        return ChoiceLogprobs(tuple(token for text in texts for token in text.tokens))

    def _chunk(self, choice: _ChunkChoice) -> bytes:
        return self._encode((choice,), None if self.include_usage else UNSET)

    def _encode(self, choices: tuple[_ChunkChoice, ...], usage: Usage | UnsetType | None) -> bytes:
        return msgspec.json.encode(
            ChatChunk(
                id=self.identity.id,
                created=self.identity.created,
                model=self.identity.model,
                system_fingerprint=self.identity.system_fingerprint,
                choices=choices,
                usage=usage,
            )
        )


def _by_chunk(pieces: Sequence[Piece]) -> Iterable[Sequence[Piece]]:
    texts: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, TextPiece):
            texts.append(piece)
            continue
        if texts:
            yield texts
            texts = []
        yield (piece,)
    if texts:
        yield texts


def _call_delta(piece: ToolCallPiece) -> _ToolCallDelta:
    return _ToolCallDelta(
        index=piece.index,
        id=UNSET if piece.id is None else piece.id,
        type=UNSET if piece.id is None else "function",
        function=_FunctionDelta(UNSET if piece.name is None else piece.name, piece.arguments),
    )


def _whole_calls(pieces: Iterable[Piece]) -> Iterable[_ToolCall]:
    """Join the fragments of each call, in the order of their indices."""
    fragments: dict[int, list[ToolCallPiece]] = {}
    for piece in pieces:
        if isinstance(piece, ToolCallPiece):
            fragments.setdefault(piece.index, []).append(piece)
    for index in sorted(fragments):
        first, arguments = fragments[index][0], "".join(p.arguments for p in fragments[index])
        yield _ToolCall(first.id or "", _Function(first.name or "", arguments))
