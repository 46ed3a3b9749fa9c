"""One answer under way: its choices, what of them was delivered, and what they cost; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshnet_common.openai.apis import AnyRequest
from meshnet_common.openai.writer import AnswerIdentity, Usage
from meshnet_common.protocol.notes import Sent
from meshnet_common.protocol.resume import ChoiceRecord, ResumeRecord
from meshnet_worker.answers.choice import Choice, Pieces, contradiction


@dataclass(slots=True)
class Answer:
    """What is told to a client, choice by choice."""

    request: AnyRequest
    identity: AnswerIdentity
    choices: Sequence[Choice]

    @property
    def is_over(self) -> bool:
        """Whether no token is missing any more."""
        return all(choice.is_over for choice in self.choices)

    @property
    def has_tokens(self) -> bool:
        """Whether any came."""
        return any(choice.token_ids for choice in self.choices)

    @property
    def longest_prompt(self) -> int:
        """How many tokens it has."""
        return max(len(choice.generation.prompt_ids) for choice in self.choices)

    @property
    def usage(self) -> Usage:
        """Count all choices, and each prompt once."""
        answered = sum(len(choice.token_ids) for choice in self.choices)
        firsts = self.choices[:: self.request.n]
        return Usage.of(sum(len(choice.generation.prompt_ids) for choice in firsts), answered)

    def resume(self, record: ResumeRecord, vocabulary_size: int) -> Mapping[int, Pieces]:
        """Go on after a record; return what its tokens have given, by choice.

        Raises ApiError 400 for a record that is none of this request's.
        """
        indices = [choice.index for choice in record.choices]
        if len(indices) != len(set(indices)) or not set(indices) <= set(range(len(self.choices))):
            raise contradiction("Its choices are not those that were asked for.")
        if 0 not in indices:
            raise contradiction("It has no first choice.")
        for one in record.choices:
            self._check(one, vocabulary_size)
        pieces = {one.index: self.choices[one.index].resume(one) for one in record.choices}
        if self.request.logprobs:
            for one in record.choices:
                self._check_told(one)
        return pieces

    def _check(self, record: ChoiceRecord, vocabulary_size: int) -> None:
        if any(not 0 <= token_id < vocabulary_size for token_id in record.token_ids):
            raise contradiction("It has a token that the model has not.")
        if not frozenset(record.sent) <= self._may_be_sent(record.index):
            raise contradiction("It has sent what was not asked for.")

    def _check_told(self, record: ChoiceRecord) -> None:
        choice = self.choices[record.index]
        is_needed = choice.held_tokens if self.request.stream else len(record.token_ids)
        if len(record.logprobs) < is_needed and not {Sent.REST, Sent.FINISH} & choice.sent:
            raise contradiction("It does not tell how likely its tokens were.")

    def _may_be_sent(self, index: int) -> frozenset[Sent]:
        if not self.request.stream:
            return frozenset()
        has_usage = self.request.include_usage and index == 0
        usage = {Sent.USAGE} if has_usage else set()
        return frozenset({Sent.ROLE, Sent.REST, Sent.FINISH, *usage})
