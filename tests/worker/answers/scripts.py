"""Answers whose tokens are known beforehand, told as a Head Worker tells them to a Tracker."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from meshnet_common.openai.messages import ChatMessage
from meshnet_common.openai.requests import ChatRequest
from meshnet_common.openai.sse import data_event
from meshnet_common.openai.writer import AnswerIdentity
from meshnet_common.protocol.resume import HeadStream, ResumeRecord
from meshnet_worker.answers.answer import Answer
from meshnet_worker.answers.events import ALIVE, StreamEvents, WholeEvents, named, with_note
from meshnet_worker.generation import Generation
from meshnet_worker.text.answer import AnswerText
from meshnet_worker.text.detokenizer import Vocabulary
from tests.worker.text.small_tokenizers import END, byte_level, sentencepiece

IDENTITY = AnswerIdentity("chatcmpl-s1", 1_000_000, "tiny", "fp_1")
PROMPT = (1, 2, 3)


@cache
def vocabulary(kind: str) -> Vocabulary:
    return Vocabulary(byte_level() if kind == "bytes" else sentencepiece())


def ids_of(kind: str, text: str) -> list[int]:
    return vocabulary(kind).tokenizer.encode(text, add_special_tokens=False).ids


def end_id(kind: str) -> int:
    token_id = vocabulary(kind).tokenizer.token_to_id(END if kind == "bytes" else "</s>")
    assert token_id is not None
    return token_id


@dataclass(frozen=True)
class Script:
    """What the model will say, to whatever was asked."""

    token_ids: Sequence[int]
    kind: str = "bytes"
    stop: tuple[str, ...] = ()
    stream: bool = True
    include_usage: bool = False
    min_tokens: int = 0
    most_tokens: int = 0
    """0 is as many as there are."""
    end_ids: frozenset[int] = field(default_factory=frozenset)

    def answer(self) -> Answer:
        """Begin it on some Head Worker."""
        request = ChatRequest(
            model="tiny",
            messages=(ChatMessage(role="user", content="Hi"),),
            stop=self.stop,
            stream=self.stream,
            include_usage=self.include_usage,
            min_tokens=self.min_tokens,
        )
        generation = Generation(
            session_id="s1",
            epoch=(1, 0),
            prompt_ids=PROMPT,
            max_new_tokens=self.most_tokens or len(self.token_ids),
            end_ids=self.end_ids,
            min_new_tokens=self.min_tokens,
            chunk_tokens=8,
        )
        text = AnswerText(vocabulary(self.kind).detokenizer(), self.stop)
        return Answer(request, IDENTITY, generation, text)

    def told(self, record: ResumeRecord | None = None) -> bytes:
        """The whole stream of a Head Worker that begins, or goes on from a record."""
        answer, text = self.answer(), ""
        if record is not None:
            text = answer.resume(record, vocabulary(self.kind).tokenizer.get_vocab_size())
        events = StreamEvents(answer, with_note) if self.stream else WholeEvents(answer, text)
        pieces = [named(answer), ALIVE]
        while not answer.is_over:
            token_id = self.token_ids[len(answer.token_ids)]
            answer.generation.chosen.append(token_id)
            pieces += [ALIVE, events.token(token_id)]
        return b"".join((*pieces, *events.ending()))


def delivered(stream: bytes, before: ResumeRecord | None = None) -> tuple[bytes, HeadStream]:
    """What a client gets of a stream, and what is on record then."""
    reader = HeadStream(before)
    data = b""
    for block in reader.feed(stream):
        data += b"" if block.payload is None else data_event(block.payload)
        reader.delivered(block)
    return data, reader
