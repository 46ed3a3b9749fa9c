"""The prompts of a request as token ids: a chat has one, and completions have several; pure.

It blocks for milliseconds on a long text, so read prompts off the event loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from meshnet_common.openai.apis import AnyRequest
from meshnet_common.openai.completions import CompletionRequest
from meshnet_common.openai.errors import context_length_exceeded, invalid_request
from meshnet_common.presets import ModelPreset
from meshnet_worker.text.tokenizer import TextCodec


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, and the text that its choices begin with if that was asked for."""

    ids: tuple[int, ...]
    echo: str = ""


def read_prompts(request: AnyRequest, codec: TextCodec, preset: ModelPreset) -> tuple[Prompt, ...]:
    """Read all of them; raises ApiError 400 for one that the model cannot take."""
    prompts = given_prompts(request, codec, preset)
    for field, prompt in zip(_fields(request), prompts, strict=True):
        if not prompt.ids:
            raise invalid_request(f"`{field}` has no token of this model.", field)
        if len(prompt.ids) >= preset.context_tokens:
            raise context_length_exceeded(len(prompt.ids), preset.context_tokens, field)
    return prompts


def given_prompts(request: AnyRequest, codec: TextCodec, preset: ModelPreset) -> tuple[Prompt, ...]:
    """Read all of them, however long they are; raises ApiError 400."""
    if not isinstance(request, CompletionRequest):
        return (Prompt(tuple(codec.prompt_ids(request.messages, request.tool_use))),)
    prompts: Sequence[str | tuple[int, ...]] = request.prompts
    for field, prompt in zip(_fields(request), prompts, strict=True):
        highest = 0 if isinstance(prompt, str) else max(prompt)
        if highest >= preset.vocabulary_size:
            facts = f"has the id {highest}; this model has {preset.vocabulary_size}"
            raise invalid_request(f"`{field}` {facts}.", field)
    return tuple(_given(prompt, codec, echoes=request.echo) for prompt in prompts)


def _given(text: str | tuple[int, ...], codec: TextCodec, *, echoes: bool) -> Prompt:
    if isinstance(text, str):
        return Prompt(tuple(codec.text_ids(text)), text if echoes else "")
    return Prompt(text, codec.text_of(text) if echoes else "")


def _fields(request: AnyRequest) -> list[str]:
    """Where each prompt stands in the body."""
    field, count = request.PROMPT_FIELD, request.prompt_count
    return [f"{field}[{place}]" for place in range(count)] if count > 1 else [field]
