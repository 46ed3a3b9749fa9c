"""What one finished answer says of an Endpoint's speed, freed of how long the answer was; pure.

How long an answer took says mostly how long it is. So each part of it is looked at by its seconds
for each token, and compared with parts of like length only: in classes of lengths, each from one
power of four on.
"""

from dataclasses import dataclass
from enum import StrEnum

LENGTH_BASE_BITS = 2
LEAST_SECONDS = 1e-6
"""What took less was not timed."""


class Measure(StrEnum):
    """What is timed."""

    PREFILL = "prefill"
    """From sending to the first answer token, for each prompt token."""
    DECODE = "decode"
    """From the first answer token to the last, for each token after the first."""
    WHOLE = "whole"
    """From sending to the end, for each answer token, where nobody saw the first one."""
    EMBEDDING = "embedding"
    """From sending to the whole answer, for each input token."""


@dataclass(frozen=True, slots=True)
class LengthClass:
    """Parts of answers that are compared with each other."""

    measure: Measure
    number: int


@dataclass(frozen=True, slots=True)
class Part:
    """One timed part of an answer."""

    length: LengthClass
    tokens: int
    seconds: float

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / self.tokens


@dataclass(frozen=True, slots=True)
class ChatPace:
    """One chat answer; seconds count from when it was sent to the Endpoint, without our queue."""

    prompt_tokens: int
    """Without those that the Endpoint had kept, where it says how many these were."""
    answer_tokens: int
    first_token_seconds: float
    """0 where the answer came in one piece."""
    last_token_seconds: float

    @property
    def seconds(self) -> float:
        return self.last_token_seconds

    def parts(self) -> tuple[Part, ...]:
        if not self.first_token_seconds:
            return _part(Measure.WHOLE, self.answer_tokens, self.last_token_seconds)
        prefill = _part(Measure.PREFILL, self.prompt_tokens, self.first_token_seconds)
        decode_seconds = self.last_token_seconds - self.first_token_seconds
        return prefill + _part(Measure.DECODE, self.answer_tokens - 1, decode_seconds)


@dataclass(frozen=True, slots=True)
class EmbeddingPace:
    """One answer of an embedder."""

    input_tokens: int
    seconds: float

    def parts(self) -> tuple[Part, ...]:
        return _part(Measure.EMBEDDING, self.input_tokens, self.seconds)


Pace = ChatPace | EmbeddingPace


def _part(measure: Measure, tokens: int, seconds: float) -> tuple[Part, ...]:
    if tokens < 1 or seconds < LEAST_SECONDS:
        return ()
    return (
        Part(LengthClass(measure, (tokens.bit_length() - 1) // LENGTH_BASE_BITS), tokens, seconds),
    )
