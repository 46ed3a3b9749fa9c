"""The bytes of an answer's stream, for a client or, with notes, for a Tracker; pure.

Every piece is a block of its own, and so says in its notes exactly what its data tells
(`meshnet_common.protocol.resume`).
"""

from collections.abc import Callable, Iterator

from meshnet_common.openai.chat_writer import ChatWriter
from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.pieces import TextPiece, WholeChoice
from meshnet_common.openai.sse import (
    DONE_EVENT,
    data_event,
    noted_event,
)
from meshnet_common.protocol.notes import (
    ALIVE_NOTE,
    MOVED_NOTE,
    Sent,
    answer_note,
    failed_note,
    sent_note,
    token_ids_note,
)
from meshnet_worker.answers.answer import Answer

ALIVE = noted_event([ALIVE_NOTE])
MOVED = noted_event([MOVED_NOTE])

Write = Callable[[str, bytes | None], bytes]
"""Writes one block: a note, and the payload that it explains if there is one."""


def with_note(note: str, payload: bytes | None) -> bytes:
    """Write for a Tracker."""
    return noted_event([note], *([payload] if payload else []))


def without_note(_note: str, payload: bytes | None) -> bytes:
    """Write for a client."""
    return b"" if payload is None else data_event(payload)


def noted_failure(error: ApiError) -> bytes:
    """End a Tracker's stream with an error."""
    note = failed_note(error.status, error.headers.get("Retry-After"))
    return noted_event([note], error.to_json()) + DONE_EVENT


def named(answer: Answer) -> bytes:
    """Say to a Tracker who the answer is."""
    return noted_event([answer_note(answer.identity.id, answer.identity.created)])


class StreamEvents:
    """A streamed answer: role, text, text that was held back, finish, usage."""

    def __init__(self, answer: Answer, write: Write) -> None:
        self.answer = answer
        self._write = write
        self._chunks = ChatWriter(answer.identity, answer.request.include_usage)

    def token(self, token_id: int) -> bytes:
        """Take the next token of the answer."""
        text = self.answer.take(token_id)
        payload = self._chunks.pieces(0, [TextPiece(text)]) if text else None
        return self._role() + self._write(token_ids_note([token_id]), payload)

    def ending(self) -> Iterator[bytes]:
        """Yield what is missing once no more tokens come."""
        answer, chunks = self.answer, self._chunks
        yield self._role()
        rest = answer.text.finish()
        if rest:
            yield self._once(Sent.REST, chunks.pieces(0, [TextPiece(rest)]))
        yield self._once(Sent.FINISH, chunks.finish(0, answer.finish_reason))
        if answer.request.include_usage:
            yield self._once(Sent.USAGE, chunks.usage(answer.usage))
        yield DONE_EVENT

    def _role(self) -> bytes:
        return self._once(Sent.ROLE, self._chunks.begin(0))

    def _once(self, sent: Sent, payload: bytes) -> bytes:
        if sent in self.answer.sent:
            return b""
        self.answer.sent.add(sent)
        return self._write(sent_note(sent), payload)


class WholeEvents:
    """An answer that is read when it is whole: its tokens, and then all of it in one event."""

    def __init__(self, answer: Answer, text: str = "") -> None:
        self.answer = answer
        self._texts = [text]

    def token(self, token_id: int) -> bytes:
        """Take the next token of the answer."""
        self._texts.append(self.answer.take(token_id))
        return noted_event([token_ids_note([token_id])])

    def ending(self) -> Iterator[bytes]:
        """Yield what is missing once no more tokens come."""
        yield data_event(self.completion())
        yield DONE_EVENT

    def completion(self) -> bytes:
        """Build the whole answer, once no more tokens come."""
        answer = self.answer
        self._texts.append(answer.text.finish())
        pieces = (TextPiece("".join(self._texts)),)
        whole = WholeChoice(0, pieces, answer.finish_reason)
        return ChatWriter(answer.identity).whole((whole,), answer.usage)
