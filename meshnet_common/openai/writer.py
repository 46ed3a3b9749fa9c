"""What every API makes of an answer's pieces: the payloads of its stream, or one whole body.

The caller gives ids and times, so that an answer that goes on elsewhere is the same answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from meshnet_common.openai.pieces import FinishReason, Piece, WholeChoice


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


class Writer(Protocol):
    """Turns one answer into the JSON of one API; of each choice in order: begin, pieces, finish.

    Each payload is an event. What a writer writes may depend on all that it was told before: one
    that goes on with an answer is told all of it again, and what it writes then is thrown away.
    """

    def begin(self, choice: int) -> Sequence[bytes]:
        """Open a choice's stream: before the pieces of any choice, in the order of the choices."""

    def pieces(self, choice: int, pieces: Sequence[Piece]) -> Sequence[bytes]:
        """Carry what came at once, in as many events as that takes."""

    def finish(self, choice: int, reason: FinishReason) -> Sequence[bytes]:
        """End a choice."""

    def usage(self, usage: Usage) -> Sequence[bytes]:
        """Count the tokens of all choices, at the very end."""

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        """Write the whole answer as one body."""
