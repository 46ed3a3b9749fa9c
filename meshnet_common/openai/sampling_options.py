"""How tokens are drawn, as clients may ask for it: the fields with their bounds, and their checks.

All APIs that generate text share them. Whether the ids of `logit_bias` are tokens of the model is
for the Head Worker to say, which knows its vocabulary.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from meshnet_common.openai.errors import invalid_request, unsupported_value
from meshnet_common.openai.foreign_options import ForeignFields, refuse_foreign_options

DEFAULT_TEMPERATURE = 1.0
DEFAULT_TOP_P = 1.0
DEFAULT_REPETITION_PENALTY = 1.0
MAX_CHOICES = 128
"""Of the public API."""
MAX_CHOICES_SERVED = 4
MAX_LOGIT_BIASES = 1024
MAX_TOKEN_ID_DIGITS = 10

_Number = TypeVar("_Number", int, float)
_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Bias = Annotated[float, Meta(ge=-100, le=100)]


class SamplingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; by default, what happens if nothing was."""

    n: int = 1
    """How many choices; the k-th is drawn with `seed` + k."""
    temperature: float = DEFAULT_TEMPERATURE
    top_p: float = DEFAULT_TOP_P
    top_k: int = 0
    """0 is no limit."""
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = DEFAULT_REPETITION_PENALTY
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids in order, each once."""


class SamplingFields(ForeignFields, frozen=True, kw_only=True):
    """The fields as clients send them: OpenAI's names, types and bounds; null means absent."""

    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**63 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: _Int64 | None = None
    # Logits are multiplied or divided by it, and must stay numbers.
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    logit_bias: Annotated[dict[str, _Bias], Meta(max_length=MAX_LOGIT_BIASES)] | None = None


def read_sampling_options(
    fields: SamplingFields, most_choices: int = MAX_CHOICES_SERVED
) -> SamplingOptions:
    """Check what no single field's bounds say; raises ApiError 400 by name."""
    refuse_foreign_options(fields)
    options = SamplingOptions(
        n=_or_default(fields.n, 1),
        temperature=_or_default(fields.temperature, DEFAULT_TEMPERATURE),
        top_p=_or_default(fields.top_p, DEFAULT_TOP_P),
        top_k=max(0, fields.top_k or 0),
        min_p=fields.min_p or 0.0,
        seed=fields.seed,
        repetition_penalty=_or_default(fields.repetition_penalty, DEFAULT_REPETITION_PENALTY),
        frequency_penalty=fields.frequency_penalty or 0.0,
        presence_penalty=fields.presence_penalty or 0.0,
        logit_bias=_biases(fields.logit_bias or {}),
    )
    if options.n > most_choices:
        message = f"This release answers with at most {most_choices} choices."
        raise unsupported_value("n", message)
    if options.n > 1 and options.temperature == 0:
        raise invalid_request("`n` is over 1, but with `temperature: 0` all are the same.", "n")
    return options


def check_vocabulary(logit_bias: tuple[tuple[int, float], ...], vocabulary_size: int) -> None:
    """Raise ApiError 400 for an id that is no token of the model."""
    # In order, so that the last one is the highest.
    if logit_bias and logit_bias[-1][0] >= vocabulary_size:
        message = f"`logit_bias` has the id {logit_bias[-1][0]}; this model has {vocabulary_size}."
        raise invalid_request(message, "logit_bias")


def _biases(by_id: dict[str, float]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted((_token_id(text), bias) for text, bias in by_id.items()))


def _token_id(text: str) -> int:
    # One spelling for each id, so that none comes twice.
    is_plain = text.isascii() and text.isdigit() and len(text) <= MAX_TOKEN_ID_DIGITS
    if not is_plain or str(int(text)) != text:
        raise invalid_request("The keys of `logit_bias` must be token ids.", "logit_bias")
    return int(text)


def _or_default(value: _Number | None, default: _Number) -> _Number:
    return default if value is None else value
