"""How text is generated, as clients may ask for it: how tokens are drawn, and when it ends.

All APIs that generate text share these fields, their bounds and their checks.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from meshnet_common.openai.errors import invalid_request
from meshnet_common.openai.sampling_options import (
    MAX_CHOICES_SERVED,
    SamplingFields,
    SamplingOptions,
    read_sampling_options,
)

MAX_STOP_STRINGS = 4
MAX_STOP_CHARACTERS = 4096

_TokenLimit = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class GenerationOptions(SamplingOptions, frozen=True, kw_only=True):
    """What was asked for, besides how to draw; None means that the client left it open."""

    max_tokens: int | None = None
    """Most tokens of a choice; still to be clamped to the room left in the context."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class GenerationFields(SamplingFields, frozen=True, kw_only=True):
    """The fields as clients send them, besides those of drawing; null means absent."""

    max_tokens: _TokenLimit | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None


def read_generation_options(
    fields: GenerationFields,
    newer_limit: int | None = None,
    most_choices: int = MAX_CHOICES_SERVED,
) -> GenerationOptions:
    """Check them together; of two token limits the newer one wins. Raises ApiError 400."""
    limit = fields.max_tokens if newer_limit is None else newer_limit
    if limit is not None and fields.min_tokens is not None and fields.min_tokens > limit:
        raise invalid_request("`min_tokens` is greater than the token limit.", "min_tokens")
    return GenerationOptions(
        **msgspec.structs.asdict(read_sampling_options(fields, most_choices)),
        max_tokens=limit,
        min_tokens=fields.min_tokens or 0,
        stop=_stop_strings(fields.stop),
        ignore_eos=bool(fields.ignore_eos),
    )


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise invalid_request(f"`stop` has more than {MAX_STOP_STRINGS} strings.", "stop")
    if "" in strings:
        raise invalid_request("`stop` must not hold an empty string.", "stop")
    if any(len(string) > MAX_STOP_CHARACTERS for string in strings):
        raise invalid_request(f"A stop string is over {MAX_STOP_CHARACTERS} characters.", "stop")
    return strings
