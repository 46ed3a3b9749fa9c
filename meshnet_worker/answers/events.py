"""The bytes of an answer's stream, for a client or, with notes, for a Tracker; pure.

Every step is a block of its own, and so says in its notes exactly what its data tells
(`meshnet_common.protocol.resume`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from meshnet_common.openai.errors import ApiError, invalid_request
from meshnet_common.openai.pieces import Piece, WholeChoice
from meshnet_common.openai.sse import DONE_EVENT, data_event, noted_event
from meshnet_common.openai.writer import Writer
from meshnet_common.protocol.notes import (
    BLAMED_NOTE,
    FELLED_NOTE,
    MOVED_NOTE,
    Sent,
    alive_note,
    answer_note,
    choice_note,
    failed_note,
    held_note,
    logprobs_note,
    sent_note,
    token_ids_note,
    usage_note,
)
from meshnet_common.protocol.resume import MAX_BLOCK_BYTES
from meshnet_common.protocol.sampling import LEAST_LOGPROB, TokenLogprobs
from meshnet_worker.answers.answer import Answer
from meshnet_worker.answers.choice import Choice, Pieces

MOVED = noted_event([MOVED_NOTE])
FELLED = noted_event([MOVED_NOTE, FELLED_NOTE])
UNTOLD = TokenLogprobs(LEAST_LOGPROB)
"""Of a token of which the Tail Worker did not tell how likely it was."""

Write = Callable[[Sequence[str], Sequence[bytes]], bytes]
"""Writes one block: notes, and the payloads that they explain if there are any."""


def with_notes(notes: Sequence[str], payloads: Sequence[bytes]) -> bytes:
    """Write for a Tracker."""
    return noted_event(notes, *payloads)


def without_notes(_notes: Sequence[str], payloads: Sequence[bytes]) -> bytes:
    """Write for a client."""
    return b"".join(map(data_event, payloads))


def noted_failure(
    error: ApiError, answer: Answer | None = None, *, is_blamed: bool = False
) -> bytes:
    """End a Tracker's stream with an error, behind what the answer has cost until then."""
    blame = [BLAMED_NOTE] if is_blamed else []
    note = failed_note(error.status, error.headers.get("Retry-After"))
    return _usage(answer) + noted_event([note, *blame], error.to_json()) + DONE_EVENT


def named(answer: Answer) -> bytes:
    """Say to a Tracker who the answer is, and what it costs already, should its client leave."""
    note = answer_note(answer.identity.id, answer.identity.created)
    return noted_event([note, *_usage_notes(answer)])


def alive(ahead: int = 0) -> bytes:
    """Say to a Tracker that there is nothing new, and how many wait before this answer."""
    return noted_event([alive_note(ahead)])


class StreamEvents:
    """A streamed answer: the roles of all choices, their pieces, each one's finish, and usage.

    One that goes on has what was told `before`, by choice. What ends the stream itself is the
    caller's: Trackers and clients of each API expect something else.
    """

    def __init__(
        self,
        answer: Answer,
        writer: Writer,
        write: Write,
        before: Mapping[int, Pieces] | None = None,
    ) -> None:
        self.answer = answer
        self._writer = writer
        self._write = write
        self._finished: set[int] = set()
        self.told = 0
        """How many events the client has got of this."""
        for choice in answer.choices:
            self._tell_again(choice, (before or {}).get(choice.index, ()))

    def token(self, index: int, token_id: int, logprobs: TokenLogprobs | None = None) -> bytes:
        """Take the next token of a choice, which may be its last one."""
        choice = self.answer.choices[index]
        pieces = choice.take(token_id, logprobs)
        notes = _token_notes(self.answer, choice, logprobs)
        if self.answer.request.logprobs:
            notes = (*notes, held_note(choice.held_tokens))
        step = self._roles() + self._tell(notes, self._payloads(choice, pieces))
        return step + (self._finish(choice) if choice.is_over else b"")

    def ending(self) -> Iterator[bytes]:
        """Yield what is missing once no more tokens come."""
        yield self._roles()
        for choice in self.answer.choices:
            yield self._finish(choice)
        yield self._write(_usage_notes(self.answer), ())
        if self.answer.request.include_usage:
            first = self.answer.choices[0]
            yield self._once(first, Sent.USAGE, self._writer.usage(self.answer.usage))

    def _tell_again(self, choice: Choice, pieces: Pieces) -> None:
        """Let the writer know what another one has told: by writing it once more, for nobody."""
        if Sent.ROLE in choice.sent:
            self._opening(choice)
        self._payloads(choice, pieces)

    def _roles(self) -> bytes:
        missing = (choice for choice in self.answer.choices if Sent.ROLE not in choice.sent)
        return b"".join(self._once(choice, Sent.ROLE, self._opening(choice)) for choice in missing)

    def _opening(self, choice: Choice) -> Sequence[bytes]:
        began = self._writer.begin(choice.index)
        return (*began, *self._payloads(choice, choice.opening))

    def _finish(self, choice: Choice) -> bytes:
        if choice.index in self._finished:
            return b""
        self._finished.add(choice.index)
        # What was told before is written all the same: a writer has to know of it.
        rest, told = choice.finish(), b""
        if rest:
            told = self._once(choice, Sent.REST, self._payloads(choice, rest))
        finish = self._writer.finish(choice.index, choice.finish_reason)
        return told + self._once(choice, Sent.FINISH, finish)

    def _payloads(self, choice: Choice, pieces: Sequence[Piece]) -> Sequence[bytes]:
        return self._writer.pieces(choice.index, pieces) if pieces else ()

    def _tell(self, notes: Sequence[str], payloads: Sequence[bytes]) -> bytes:
        self.told += len(payloads)
        return self._write(notes, payloads)

    def _once(self, choice: Choice, sent: Sent, payloads: Sequence[bytes]) -> bytes:
        if sent in choice.sent:
            return b""
        choice.sent.add(sent)
        notes = (*_choice_notes(choice), sent_note(sent))
        is_told = sent is Sent.REST and self.answer.request.logprobs
        return self._tell((*notes, held_note(0)) if is_told else notes, payloads)


class WholeEvents:
    """An answer that is read when it is whole: its tokens, and then all of it in one event."""

    def __init__(
        self, answer: Answer, writer: Writer, before: Mapping[int, Pieces] | None = None
    ) -> None:
        self.answer = answer
        self._writer = writer
        known = before or {}
        self._pieces = [
            [*choice.opening, *known.get(choice.index, ())] for choice in answer.choices
        ]

    def token(self, index: int, token_id: int, logprobs: TokenLogprobs | None = None) -> bytes:
        """Take the next token of a choice."""
        choice = self.answer.choices[index]
        self._pieces[index] += choice.take(token_id, logprobs)
        return noted_event(_token_notes(self.answer, choice, logprobs))

    def ending(self) -> Iterator[bytes]:
        """Yield what is missing once no more tokens come."""
        yield _usage(self.answer)
        yield data_event(self.whole())

    def whole(self) -> bytes:
        """Write the whole answer, once no more tokens come; raises ApiError 400 if too large."""
        choices = [
            WholeChoice(choice.index, (*pieces, *choice.finish()), choice.finish_reason)
            for choice, pieces in zip(self.answer.choices, self._pieces, strict=True)
        ]
        whole = self._writer.whole(choices, self.answer.usage)
        if len(data_event(whole)) > MAX_BLOCK_BYTES:
            megabytes = MAX_BLOCK_BYTES >> 20
            facts = f"The answer would be over {megabytes} MiB. Ask for a stream, or for less."
            raise invalid_request(facts)
        return whole


def _usage(answer: Answer | None) -> bytes:
    return b"" if answer is None else noted_event(_usage_notes(answer))


def _usage_notes(answer: Answer) -> Sequence[str]:
    usage = answer.usage
    return [usage_note(usage.prompt_tokens, usage.completion_tokens)]


def _choice_notes(choice: Choice) -> Sequence[str]:
    return [choice_note(choice.index)] if choice.index else []


def _token_notes(answer: Answer, choice: Choice, logprobs: TokenLogprobs | None) -> tuple[str, ...]:
    told = [logprobs_note([logprobs or UNTOLD])] if answer.request.logprobs else []
    return (*_choice_notes(choice), token_ids_note(choice.token_ids[-1:]), *told)
