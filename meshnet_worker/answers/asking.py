"""From a request to the answer that is to be told: its choices, how each is drawn, its name; pure.

Whatever Head Worker does this, the same comes out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from meshnet_common.openai.apis import AnyRequest
from meshnet_common.openai.chat_writer import ChatWriter
from meshnet_common.openai.completion_writer import CompletionWriter
from meshnet_common.openai.completions import CompletionRequest
from meshnet_common.openai.errors import invalid_request
from meshnet_common.openai.formats import grammar_text
from meshnet_common.openai.pieces import TextPiece
from meshnet_common.openai.requests import ChatRequest
from meshnet_common.openai.response_request import ResponseRequest
from meshnet_common.openai.response_writer import ResponseWriter
from meshnet_common.openai.sampling_options import check_vocabulary
from meshnet_common.openai.tools import call_id
from meshnet_common.openai.writer import AnswerIdentity, Writer
from meshnet_common.protocol.resume import ResumeRecord, most_tokens_told_at_once
from meshnet_common.protocol.sampling import Sampling
from meshnet_worker.answers.answer import Answer
from meshnet_worker.answers.choice import Choice, ChoiceText
from meshnet_worker.answers.prompts import Prompt, count_prompts, read_prompts
from meshnet_worker.generation import Generation
from meshnet_worker.head_tokens import Asked
from meshnet_worker.shards import LocalShard
from meshnet_worker.text.answer import AnswerText
from meshnet_worker.text.calling_text import CallingText
from meshnet_worker.text.grammars import check_grammar
from meshnet_worker.text.tokenizer import TextCodec
from meshnet_worker.text.tool_calls import CallRules
from meshnet_worker.text.tool_grammar import answer_grammar, holds_calls
from meshnet_worker.tickets import SignedRoute


@dataclass(frozen=True, slots=True)
class Pace:
    """In which steps this Worker sends prompts out, and reserves room for answers."""

    chunk_tokens: int
    block_positions: int


@dataclass(frozen=True, slots=True)
class Asking:
    """One request, and what this Worker has to answer it with."""

    request: AnyRequest
    record: ResumeRecord | None
    route: SignedRoute
    shard: LocalShard
    codec: TextCodec

    @property
    def session_ids(self) -> tuple[str, ...]:
        """Of each choice."""
        return tuple(
            self.route.ticket.of_choice(k).session_id for k in range(self.request.choice_count)
        )

    def sampling(self, choice: int) -> Sampling:
        """How one choice is drawn: each from a seed of its own."""
        request, seed, grammar = self.request, self.request.seed, self._grammar
        first_seed = self.route.ticket.seed if seed is None else seed
        return Sampling(
            temperature=request.temperature,
            top_p=request.top_p,
            seed=_wrapped(first_seed + choice),
            top_k=min(request.top_k, self.shard.preset.vocabulary_size),
            min_p=request.min_p,
            repetition_penalty=request.repetition_penalty,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            logit_bias=request.logit_bias,
            end_ids=tuple(sorted(self.codec.eos_ids)) if request.min_tokens or grammar else (),
            min_tokens=request.min_tokens,
            grammar=grammar,
            logprobs=request.top_logprobs if request.logprobs else None,
        )

    def identity(self, now: float) -> AnswerIdentity:
        """Who the answer is, since whichever Head Worker began it."""
        record, ticket = self.record, self.route.ticket
        return AnswerIdentity(
            id=record.id if record else f"{self.request.ID_PREFIX}{ticket.session_id}",
            created=record.created if record else int(now),
            model=self.request.model,
            system_fingerprint=self.shard.fingerprint,
        )

    def begin(self, now: float, pace: Pace) -> Answer:
        """Read the prompt; raises ApiError 400. It blocks for milliseconds on a long one."""
        request = self.request
        check_vocabulary(request.logit_bias, self.shard.preset.vocabulary_size)
        if self._grammar:
            check_grammar(self._grammar, request.rules_field)
        prompts = read_prompts(request, self.codec, self.shard.preset)
        identity = self.identity(now)
        texts = [self._text(identity.id, k) for k in range(request.choice_count)]
        choices = [
            self._choice(k, text, prompts[k // request.n], pace) for k, text in enumerate(texts)
        ]
        return Answer(request, identity, choices)

    def count_prompt(self) -> int:
        """Count the tokens of all prompts; raises ApiError 400. It blocks like `begin`."""
        return count_prompts(self.request, self.codec)

    def missing(self, answer: Answer) -> Iterator[Asked]:
        """What is still to be generated."""
        for choice in answer.choices:
            if not choice.is_over:
                route = self.route.of_choice(choice.index)
                yield Asked(route, choice.generation, self.sampling(choice.index))

    @property
    def _grammar(self) -> str:
        """What an answer is held to; without tools the model's style of calls is of no interest."""
        request = self.request
        if not request.tool_use.offered:
            return grammar_text(request.response_format)
        return answer_grammar(self.codec.call_style, request.tool_use, request.response_format)

    def _text(self, answer_id: str, index: int) -> ChoiceText:
        request, use, detokenizer = self.request, self.request.tool_use, self.codec.detokenizer()
        if not use.offered:
            return AnswerText(
                detokenizer, request.stop, request.min_tokens, tells_tokens=request.logprobs
            )
        style = self.codec.call_style
        rules = CallRules(
            style=style,
            names=frozenset(tool.name for tool in use.callable_now),
            call_id=partial(call_id, answer_id, index),
            is_sure=holds_calls(style, use, request.response_format),
            is_parallel=use.is_parallel,
            is_forced=use.is_forced,
        )
        return CallingText(detokenizer, request.stop, rules, request.min_tokens)

    def _choice(self, index: int, text: ChoiceText, prompt: Prompt, pace: Pace) -> Choice:
        request, ticket = self.request, self.route.ticket
        generation = Generation(
            session_id=ticket.of_choice(index).session_id,
            epoch=(ticket.incarnation, 0),
            prompt_ids=prompt.ids,
            max_new_tokens=self._most_tokens(prompt),
            end_ids=frozenset() if request.ignore_eos else self.codec.eos_ids,
            min_new_tokens=request.min_tokens,
            chunk_tokens=pace.chunk_tokens,
            block_positions=pace.block_positions,
        )
        opening = (TextPiece(prompt.echo),) if prompt.echo else ()
        return Choice(index, generation, text, opening)

    def _most_tokens(self, prompt: Prompt) -> int:
        """How long a choice may be; raises ApiError 400 where its record could not hold it."""
        request = self.request
        room_left = self.shard.preset.context_tokens - len(prompt.ids)
        most = min(request.max_tokens or room_left, room_left)
        if request.stream or not request.logprobs:
            return most
        recordable = most_tokens_told_at_once(request.top_logprobs) // request.choice_count
        if request.max_tokens is not None and most > recordable:
            facts = (
                f"Without `stream: true`, answers with these log probabilities have {recordable}"
            )
            raise invalid_request(f"{facts} tokens at most.", "logprobs")
        return min(most, recordable)


def writer_of(answer: Answer) -> Writer:
    """Who writes an answer, as its request wants it."""
    request, identity = answer.request, answer.identity
    match request:
        case CompletionRequest():
            return CompletionWriter(identity, request.include_usage, request.logprobs)
        case ResponseRequest():
            return ResponseWriter(identity, request)
        case ChatRequest():
            return ChatWriter(identity, request.include_usage, request.logprobs)


def _wrapped(seed: int) -> int:
    """Keep a seed in 64 bits with a sign."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
