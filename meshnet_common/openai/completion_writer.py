"""Text completions: the chunks of a stream and the whole answer, from pieces of any answer; pure.

How likely tokens were is told in the shape of the older API, which also says where in the text of
its choice each of them begins, in characters.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET, UnsetType

from meshnet_common.openai.pieces import (
    FinishReason,
    Piece,
    TextPiece,
    TokenLogprob,
    WholeChoice,
)
from meshnet_common.openai.writer import AnswerIdentity, Usage


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Of each token of a text: what it is, how likely it was, what else was, where it begins."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    text_offset: tuple[int, ...]


class _CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole body of an answer without `stream`, and the data of one event of a stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: tuple[_CompletionChoice, ...]
    usage: Usage | UnsetType | None
    system_fingerprint: str


@dataclass(slots=True)
class CompletionWriter:
    """Writes one answer of text completions."""

    identity: AnswerIdentity
    include_usage: bool = False
    has_logprobs: bool = False
    _told: dict[int, int] = field(default_factory=dict)
    """Characters of each choice that its stream has told."""

    def begin(self, choice: int) -> Sequence[bytes]:  # noqa: ARG002 - its first text is enough
        return ()

    def pieces(self, choice: int, pieces: Sequence[Piece]) -> Sequence[bytes]:
        texts = _texts(pieces)
        start = self._told.get(choice, 0)
        told = _CompletionChoice(
            index=choice, text=_joined(texts), logprobs=self._logprobs(texts, start)
        )
        self._told[choice] = start + len(told.text)
        return [self._chunk(told)]

    def finish(self, choice: int, reason: FinishReason) -> Sequence[bytes]:
        return [self._chunk(_CompletionChoice(index=choice, text="", finish_reason=reason))]

    def usage(self, usage: Usage) -> Sequence[bytes]:
        return [self._encode((), usage)]

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        return self._encode(tuple(map(self._whole_choice, choices)), usage)

    def _whole_choice(self, choice: WholeChoice) -> _CompletionChoice:
        texts = _texts(choice.pieces)
        return _CompletionChoice(
            index=choice.index,
            text=_joined(texts),
            logprobs=self._logprobs(texts, 0),
            finish_reason=choice.finish_reason,
        )

    def _logprobs(self, texts: Iterable[TextPiece], start: int) -> CompletionLogprobs | None:
        if not self.has_logprobs:
            return None
        tokens = [token for text in texts for token in text.tokens]
        offsets = []
        for token in tokens:
            offsets.append(start)
            start += len(token.token)
        return CompletionLogprobs(
            tokens=tuple(token.token for token in tokens),
            token_logprobs=tuple(token.logprob for token in tokens),
            top_logprobs=tuple(map(_likely, tokens)),
            text_offset=tuple(offsets),
        )

    def _chunk(self, choice: _CompletionChoice) -> bytes:
        return self._encode((choice,), None if self.include_usage else UNSET)

    def _encode(
        self, choices: tuple[_CompletionChoice, ...], usage: Usage | UnsetType | None
    ) -> bytes:
        return msgspec.json.encode(
            TextCompletion(
                id=self.identity.id,
                created=self.identity.created,
                model=self.identity.model,
                choices=choices,
                usage=usage,
                system_fingerprint=self.identity.system_fingerprint,
            )
        )


def _texts(pieces: Iterable[Piece]) -> list[TextPiece]:
    return [piece for piece in pieces if isinstance(piece, TextPiece)]


def _joined(texts: Iterable[TextPiece]) -> str:
    return "".join(piece.text for piece in texts)


def _likely(token: TokenLogprob) -> dict[str, float]:
    """Return the likeliest tokens by their texts, always with the one that was drawn."""
    told: dict[str, float] = {}
    for other in token.top_logprobs:
        # Parts of characters may look alike; the likelier one counts.
        told.setdefault(other.token, other.logprob)
    if all(other.bytes != token.bytes for other in token.top_logprobs):
        told.setdefault(token.token, token.logprob)
    return told
