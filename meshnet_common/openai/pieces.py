"""What an answer consists of, whatever API tells it: pieces of text and of tool calls.

A piece follows from the request and the answer's tokens alone, so that any Head Worker can go on.
"""

from enum import StrEnum

import msgspec


class FinishReason(StrEnum):
    """Why a choice ended: its end or a stop string, or a token limit, or complete tool calls."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the tokens that were most likely in a place."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token of an answer, and how likely it was.

    The `token`s of an answer join to its text: one that ends inside a character shows nothing, the
    one that completes it shows all of it. The `bytes` are always the token's own.
    """

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[TopLogprob, ...] = ()


class TextPiece(msgspec.Struct, frozen=True):
    """Some text, of whole characters; `tokens` are those it comes from if they were asked for."""

    text: str
    tokens: tuple[TokenLogprob, ...] = ()


class ToolCallPiece(msgspec.Struct, frozen=True):
    """A fragment of the tool call at `index`; only its first one has an id and a name."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Piece = TextPiece | ToolCallPiece


class WholeChoice(msgspec.Struct, frozen=True):
    """All of one choice, for who reads it when it is whole."""

    index: int
    pieces: tuple[Piece, ...]
    finish_reason: FinishReason
