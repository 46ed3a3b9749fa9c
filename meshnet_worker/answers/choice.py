"""One choice of an answer under way: what its tokens say, and why it ended; pure.

A choice that another Head Worker began is built up again from the record of its tokens: their text
has been delivered, and what was held back of it is held back again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from meshnet_common.openai.errors import ApiError, invalid_request
from meshnet_common.openai.pieces import FinishReason, Piece
from meshnet_common.protocol.notes import Sent
from meshnet_common.protocol.resume import ChoiceRecord
from meshnet_common.protocol.sampling import TokenLogprobs
from meshnet_worker.generation import Generation

Pieces = Sequence[Piece]


class ChoiceText(Protocol):
    """What turns a choice's tokens into pieces; the caller keeps end tokens away from it."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: the choice is over."""

    @property
    def pending_tokens(self) -> int:
        """Of how many of the newest tokens it is still to be told how likely they were."""

    @property
    def complete_calls(self) -> int:
        """How many tools were called."""

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> Pieces:
        """Take the next token; return what it gives, perhaps nothing."""

    def finish(self, *, is_cut: bool) -> Pieces:
        """Return what was held back, once no more tokens come; `is_cut` is by a token limit."""


@dataclass(slots=True)
class Choice:
    """The pieces of one generation, token by token."""

    index: int
    generation: Generation
    text: ChoiceText
    opening: Pieces = ()
    """What is told of it before its first token."""
    token_ids: list[int] = field(default_factory=list)
    """Those that were taken; a generation may be ahead of them."""
    sent: set[Sent] = field(default_factory=set)
    """What was delivered besides its pieces."""

    @property
    def is_over(self) -> bool:
        """Whether no token is missing any more."""
        if {Sent.REST, Sent.FINISH} & self.sent or self.text.stopped:
            return True
        return self.generation.finished and len(self.token_ids) == len(self.generation.chosen)

    @property
    def finish_reason(self) -> FinishReason:
        if self._is_cut:
            return FinishReason.LENGTH
        return FinishReason.TOOL_CALLS if self.text.complete_calls else FinishReason.STOP

    @property
    def held_tokens(self) -> int:
        """Of how many of the newest tokens it is still to be told how likely they were."""
        pending = self.text.pending_tokens
        # The model's end is none that is told, but it is the newest.
        return pending + self._ends_with_model if pending else 0

    def take(self, token_id: int, logprobs: TokenLogprobs | None = None) -> Pieces:
        """Take the next token; return what it gives, perhaps nothing."""
        self.token_ids.append(token_id)
        return () if self._ends_with_model else self.text.push(token_id, logprobs)

    def finish(self) -> Pieces:
        """Return what was held back, once no more tokens come."""
        return self.text.finish(is_cut=self._is_cut)

    def resume(self, record: ChoiceRecord) -> Pieces:
        """Go on after a record; return what its tokens have given.

        Raises ApiError 400 for a record that is none of this choice's.
        """
        if len(record.token_ids) > self.generation.max_new_tokens:
            raise contradiction("It has more tokens than the answer may have.")
        pieces = tuple(self._again(record))
        self.sent = set(record.sent)
        self.generation = replace(self.generation, chosen=list(record.token_ids))
        return pieces

    @property
    def _is_cut(self) -> bool:
        return not (self.text.stopped or self.generation.ended_by_model)

    @property
    def _ends_with_model(self) -> bool:
        # As the generation's own rule, for the tokens that were taken so far.
        if not self.token_ids or len(self.token_ids) <= self.generation.min_new_tokens:
            return False
        return self.token_ids[-1] in self.generation.end_ids

    def _again(self, record: ChoiceRecord) -> Iterator[Piece]:
        untold = len(record.token_ids) - len(record.logprobs)
        if untold < 0:
            raise contradiction("It tells of more tokens than it has.")
        for token_id, logprobs in zip(
            record.token_ids, (*[None] * untold, *record.logprobs), strict=True
        ):
            if self.text.stopped or self._ends_with_model:
                raise contradiction("It goes on behind the answer's end.")
            yield from self.take(token_id, logprobs)


def contradiction(facts: str) -> ApiError:
    """Refuse a record that cannot be that of the request."""
    return invalid_request(f"The record is not that of this request: {facts}", "record")
