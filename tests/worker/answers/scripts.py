"""Answers whose tokens are known beforehand, told as a Head Worker tells them to a Tracker."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from meshnet_common.openai.apis import AnyRequest
from meshnet_common.openai.completions import CompletionRequest
from meshnet_common.openai.messages import ChatMessage
from meshnet_common.openai.pieces import TextPiece
from meshnet_common.openai.requests import ChatRequest
from meshnet_common.openai.response_request import ResponseBody, ResponseRequest
from meshnet_common.openai.sse import DONE_EVENT, data_event
from meshnet_common.openai.writer import AnswerIdentity
from meshnet_common.protocol.resume import HeadStream, ResumeRecord
from meshnet_common.protocol.sampling import TokenLogprobs
from meshnet_worker.answers.answer import Answer
from meshnet_worker.answers.asking import writer_of
from meshnet_worker.answers.choice import Choice, ChoiceText
from meshnet_worker.answers.events import StreamEvents, WholeEvents, alive, named, with_notes
from meshnet_worker.generation import Generation
from meshnet_worker.text.answer import AnswerText
from meshnet_worker.text.calling_text import CallingText
from meshnet_worker.text.detokenizer import Vocabulary
from meshnet_worker.text.tool_calls import CallRules
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


def likely(token_id: int) -> TokenLogprobs:
    """How likely a token was, which any Tail Worker would say."""
    return TokenLogprobs(-token_id / 7, ((token_id, -token_id / 7), (300, -9999.0), (0, -1.5)))


@dataclass(frozen=True)
class Script:
    """What the model will say, to whatever was asked."""

    token_ids: Sequence[int]
    kind: str = "bytes"
    stop: tuple[str, ...] = ()
    stream: bool = True
    include_usage: bool = False
    logprobs: bool = False
    min_tokens: int = 0
    most_tokens: int = 0
    """0 is as many as there are."""
    end_ids: frozenset[int] = field(default_factory=frozenset)
    others: tuple[Sequence[int], ...] = ()
    """What the choices after the first one say."""
    calls: CallRules | None = None
    """The calls that there may be in them."""
    api: str = "chat"
    echo: str = ""
    """What completions begin with."""

    def answer(self) -> Answer:
        """Begin it on some Head Worker."""
        request = self._request()
        said = (self.token_ids, *self.others)
        choices = [self._choice(index, len(ids)) for index, ids in enumerate(said)]
        return Answer(request, IDENTITY, choices)

    def _request(self) -> AnyRequest:
        common: dict[str, Any] = {
            "model": "tiny",
            "n": 1 + len(self.others),
            "stop": self.stop,
            "stream": self.stream,
            "include_usage": self.include_usage,
            "logprobs": self.logprobs,
            "min_tokens": self.min_tokens,
        }
        if self.api == "responses":
            messages = (ChatMessage(role="user", content="Hi"),)
            common["include_usage"] = self.stream
            body = ResponseBody(model="tiny", input="Hi")
            return ResponseRequest(messages=messages, body=body, **common)
        if self.api == "completions":
            return CompletionRequest(prompts=("Hi",), echo=bool(self.echo), **common)
        return ChatRequest(messages=(ChatMessage(role="user", content="Hi"),), **common)

    def _choice(self, index: int, tokens: int) -> Choice:
        generation = Generation(
            session_id=f"s1.{index}",
            epoch=(1, 0),
            prompt_ids=PROMPT,
            max_new_tokens=self.most_tokens or tokens,
            end_ids=self.end_ids,
            min_new_tokens=self.min_tokens,
            chunk_tokens=8,
        )
        detokenizer = vocabulary(self.kind).detokenizer()
        text: ChoiceText = AnswerText(detokenizer, self.stop, tells_tokens=self.logprobs)
        if self.calls is not None:
            text = CallingText(detokenizer, self.stop, self.calls)
        opening = (TextPiece(self.echo),) if self.echo else ()
        return Choice(index, generation, text, opening)

    def drawn(self, answer: Answer) -> Iterator[tuple[int, int, TokenLogprobs | None]]:
        """What is missing: a token of each choice in turn."""
        said = (self.token_ids, *self.others)
        while not answer.is_over:
            for choice in answer.choices:
                if not choice.is_over:
                    token_id = said[choice.index][len(choice.token_ids)]
                    choice.generation.chosen.append(token_id)
                    yield choice.index, token_id, likely(token_id) if self.logprobs else None

    def told(self, record: ResumeRecord | None = None) -> bytes:
        """The whole stream of a Head Worker that begins, or goes on from a record."""
        answer, before = self.answer(), None
        if record is not None:
            before = answer.resume(record, vocabulary(self.kind).tokenizer.get_vocab_size())
        writer = writer_of(answer)
        events: StreamEvents | WholeEvents
        if self.stream:
            events = StreamEvents(answer, writer, with_notes, before)
        else:
            events = WholeEvents(answer, writer, before)
        pieces = [named(answer), alive()]
        for one in self.drawn(answer):
            pieces += [alive(), events.token(*one)]
        return b"".join((*pieces, *events.ending(), DONE_EVENT))


def delivered(stream: bytes, before: ResumeRecord | None = None) -> tuple[bytes, HeadStream]:
    """What a client gets of a stream, and what is on record then."""
    reader = HeadStream(before)
    data = b""
    for block in reader.feed(stream):
        data += b"".join(map(data_event, block.payloads))
        reader.delivered(block)
    return data, reader
