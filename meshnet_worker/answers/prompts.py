"""The prompts of a request as token ids: a chat has one, and completions have several; pure.

It blocks for milliseconds on a long text, so read prompts off the event loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from meshnet_common.openai.apis import AnyRequest
from meshnet_common.openai.completions import CompletionRequest
from meshnet_common.openai.errors import context_length_exceeded, invalid_request
from meshnet_common.presets import ModelPreset
from meshnet_worker.text.long_texts import GivenText, ReadIds, read_text
from meshnet_worker.text.tokenizer import TextCodec


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, and the text that its choices begin with if that was asked for."""

    ids: tuple[int, ...]
    echo: str = ""


def read_prompts(request: AnyRequest, codec: TextCodec, preset: ModelPreset) -> tuple[Prompt, ...]:
    """Read all of them; raises ApiError 400 for one that the model cannot take."""
    given = _given(request, codec)
    fields = _fields(request)
    for field, prompt in zip(fields, given, strict=True):
        highest = 0 if isinstance(prompt, str) else max(prompt)
        if highest >= preset.vocabulary_size:
            facts = f"has the id {highest}; this model has {preset.vocabulary_size}"
            raise invalid_request(f"`{field}` {facts}.", field)
    ids_of = _reader(request, codec)
    room = preset.context_tokens
    echoes = isinstance(request, CompletionRequest) and request.echo
    prompts = []
    for field, prompt in zip(fields, given, strict=True):
        ids = _fitting(prompt, ids_of, room, field)
        prompts.append(Prompt(ids, _echo(prompt, codec) if echoes else ""))
    return tuple(prompts)


def count_prompts(request: AnyRequest, codec: TextCodec) -> int:
    """Count the tokens of all of them, however long they are; raises ApiError 400."""
    ids_of = _reader(request, codec)
    return sum(
        len(ids_of(prompt) if isinstance(prompt, str) else prompt)
        for prompt in _given(request, codec)
    )


def _given(request: AnyRequest, codec: TextCodec) -> Sequence[GivenText]:
    if isinstance(request, CompletionRequest):
        return request.prompts
    return (codec.chat_text(request.messages, request.tool_use),)


def _reader(request: AnyRequest, codec: TextCodec) -> ReadIds:
    return codec.text_ids if isinstance(request, CompletionRequest) else codec.chat_ids


def _fitting(prompt: GivenText, ids_of: ReadIds, room: int, field: str) -> tuple[int, ...]:
    read = read_text(prompt, ids_of, room)
    if not read.ids:
        raise invalid_request(f"`{field}` has no token of this model.", field)
    if len(read.ids) >= room:
        raise context_length_exceeded(len(read.ids), room, field, is_least=not read.is_whole)
    return read.ids


def _echo(prompt: GivenText, codec: TextCodec) -> str:
    return prompt if isinstance(prompt, str) else codec.text_of(prompt)


def _fields(request: AnyRequest) -> list[str]:
    """Where each prompt stands in the body."""
    field, count = request.PROMPT_FIELD, request.prompt_count
    return [f"{field}[{place}]" for place in range(count)] if count > 1 else [field]
