"""One answer under way: what its tokens say, what of it was delivered, and why it ended; pure.

An answer that another Head Worker began is built up again from the record of its tokens: their
text has been delivered, and what was held back of it is held back again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from meshnet_common.openai.errors import ApiError, invalid_request
from meshnet_common.openai.pieces import FinishReason
from meshnet_common.openai.requests import ChatRequest
from meshnet_common.openai.writer import AnswerIdentity, Usage
from meshnet_common.protocol.notes import Sent
from meshnet_common.protocol.resume import ResumeRecord
from meshnet_worker.generation import Generation
from meshnet_worker.text.answer import AnswerText


@dataclass(slots=True)
class Answer:
    """The text of a generation, token by token."""

    request: ChatRequest
    identity: AnswerIdentity
    generation: Generation
    text: AnswerText
    token_ids: list[int] = field(default_factory=list)
    """Those whose text was taken; a generation may be ahead of them."""
    sent: set[Sent] = field(default_factory=set)
    """What was delivered besides their text."""

    @property
    def is_over(self) -> bool:
        """Whether no token is missing any more."""
        if {Sent.REST, Sent.FINISH} & self.sent or self.text.stopped:
            return True
        return self.generation.finished and len(self.token_ids) == len(self.generation.chosen)

    @property
    def finish_reason(self) -> FinishReason:
        is_stop = self.text.stopped or self.generation.ended_by_model
        return FinishReason.STOP if is_stop else FinishReason.LENGTH

    @property
    def usage(self) -> Usage:
        return Usage.of(len(self.generation.prompt_ids), len(self.token_ids))

    def take(self, token_id: int) -> str:
        """Take the next token; return the text that it gives, perhaps none."""
        self.token_ids.append(token_id)
        return "" if self._ends_with_model else self.text.push(token_id)

    def resume(self, record: ResumeRecord, vocabulary_size: int) -> str:
        """Go on after a record; return the text that its tokens have given.

        Raises ApiError 400 for a record that is none of this request's.
        """
        choice = record.choices[0] if record.choices else None
        if choice is None or len(record.choices) > 1 or choice.index:
            raise _contradiction("It is one of several choices.")
        if len(choice.token_ids) > self.generation.max_new_tokens:
            raise _contradiction("It has more tokens than the answer may have.")
        if any(not 0 <= token_id < vocabulary_size for token_id in choice.token_ids):
            raise _contradiction("It has a token that the model has not.")
        if not frozenset(choice.sent) <= self._may_be_sent:
            raise _contradiction("It has sent what was not asked for.")
        text = "".join(self._again(choice.token_ids))
        self.sent = set(choice.sent)
        self.generation = replace(self.generation, chosen=list(choice.token_ids))
        return text

    @property
    def _may_be_sent(self) -> frozenset[Sent]:
        if not self.request.stream:
            return frozenset()
        usage = {Sent.USAGE} if self.request.include_usage else set()
        return frozenset({Sent.ROLE, Sent.REST, Sent.FINISH, *usage})

    @property
    def _ends_with_model(self) -> bool:
        # As the generation's own rule, for the tokens that were taken so far.
        is_end = self.token_ids[-1] in self.generation.end_ids
        return is_end and len(self.token_ids) > self.generation.min_new_tokens

    def _again(self, token_ids: tuple[int, ...]) -> Iterator[str]:
        for token_id in token_ids:
            if self.text.stopped or (self.token_ids and self._ends_with_model):
                raise _contradiction("It goes on behind the answer's end.")
            yield self.take(token_id)


def _contradiction(facts: str) -> ApiError:
    return invalid_request(f"The record is not that of this request: {facts}", "record")
