"""The prompts of a request as token ids: a chat has one, and completions have several; pure.

It blocks for milliseconds on a long text, so read prompts off the event loop.
"""

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
    prompts: tuple[Prompt, ...]
    if isinstance(request, CompletionRequest):
        vocabulary_size = preset.vocabulary_size
        prompts = tuple(_given(one, request, codec, vocabulary_size) for one in request.prompts)
    else:
        prompts = (Prompt(tuple(codec.prompt_ids(request.messages, request.tool_use))),)
    for place, prompt in enumerate(prompts):
        field = request.PROMPT_FIELD
        _check(prompt, preset, f"{field}[{place}]" if len(prompts) > 1 else field)
    return prompts


def _given(
    text: str | tuple[int, ...], request: CompletionRequest, codec: TextCodec, vocabulary_size: int
) -> Prompt:
    if isinstance(text, str):
        return Prompt(tuple(codec.text_ids(text)), text if request.echo else "")
    if max(text) >= vocabulary_size:
        message = f"`prompt` has the id {max(text)}; this model has {vocabulary_size}."
        raise invalid_request(message, "prompt")
    return Prompt(text, codec.text_of(text) if request.echo else "")


def _check(prompt: Prompt, preset: ModelPreset, field: str) -> None:
    if not prompt.ids:
        raise invalid_request(f"`{field}` has no token of this model.", field)
    if len(prompt.ids) >= preset.context_tokens:
        raise context_length_exceeded(len(prompt.ids), preset.context_tokens, field)
