"""From the bytes of a completion request to what a Head Worker needs, every rule checked; pure.

The older API: a prompt is a text or token ids, and not a chat. Several prompts in one request have
`n` choices each, and all of them have one place in line.
"""

from collections.abc import Iterable
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from meshnet_common.openai.answer_request import (
    AnswerRequest,
    StreamOptions,
    check_stream_options,
)
from meshnet_common.openai.errors import unsupported_value
from meshnet_common.openai.generation_options import GenerationFields, read_generation_options
from meshnet_common.openai.json_body import decode_body
from meshnet_common.openai.text_inputs import TextInput, Texts, TokenLists, read_text_input

DEFAULT_MAX_TOKENS = 16
"""Of the public API."""
MAX_COMPLETIONS = 16
"""Choices of all prompts of a request."""
MAX_COMPLETION_LOGPROBS = 5
MAX_OPENING_CHARACTERS = 1024

_Name = Annotated[str, Meta(min_length=1, max_length=256)]


class CompletionRequest(AnswerRequest, frozen=True, kw_only=True):
    """A completion request after validation."""

    ID_PREFIX: ClassVar[str] = "cmpl-"
    PROMPT_FIELD: ClassVar[str] = "prompt"

    prompts: Texts | TokenLists
    echo: bool = False
    """Whether each choice begins with its prompt."""

    @property
    def prompt_count(self) -> int:
        return len(self.prompts)

    def turns(self) -> Iterable[tuple[str, str]]:
        """Return what requests for the same text begin with, as if it were a chat's."""
        first = self.prompts[0]
        if not isinstance(first, str):
            first = " ".join(map(str, first[:MAX_OPENING_CHARACTERS]))
        return [("user", first[:MAX_OPENING_CHARACTERS])]


class CompletionBody(GenerationFields, frozen=True, kw_only=True):
    """The body as clients send it: OpenAI's names, types and bounds; null means absent."""

    model: _Name
    prompt: TextInput
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None = None
    echo: bool | None = None
    # Read only to be refused, unless they ask for what happens anyway.
    suffix: str | None = None
    best_of: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


def parse_completion_request(body: bytes) -> CompletionRequest:
    """Check the whole body of `POST /v1/completions`; raises ApiError 400, nothing else."""
    fields = decode_body(body, CompletionBody)
    prompts = read_text_input(fields.prompt, "prompt")
    limit = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    options = read_generation_options(fields, limit, most_choices=MAX_COMPLETIONS)
    _check_number(len(prompts), options.n)
    _refuse_others(fields, options.n)
    return CompletionRequest(
        model=fields.model,
        prompts=prompts,
        echo=bool(fields.echo),
        stream=bool(fields.stream),
        include_usage=check_stream_options(fields.stream_options, fields.stream),
        logprobs=fields.logprobs is not None,
        top_logprobs=fields.logprobs or 0,
        **msgspec.structs.asdict(options),
    )


def _check_number(prompts: int, n: int) -> None:
    if prompts * n > MAX_COMPLETIONS:
        text = f"{prompts} prompts with {n} choices each are over {MAX_COMPLETIONS} in one request."
        raise unsupported_value("prompt", text)


def _refuse_others(fields: CompletionBody, n: int) -> None:
    if fields.suffix:
        raise unsupported_value("suffix", "This release inserts no text before a `suffix`.")
    if fields.best_of not in {None, 1, n}:
        raise unsupported_value("best_of", "This release supports `best_of` only if it is `n`.")
    if fields.echo and fields.logprobs is not None:
        # How likely a prompt's tokens were is not known.
        raise unsupported_value("echo", "This release does not support `echo` with `logprobs`.")
