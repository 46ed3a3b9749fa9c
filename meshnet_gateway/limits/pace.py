"""What one finished answer says of an Endpoint's speed, freed of how long the answer was; pure.

How long an answer took says mostly how long it is. So a limit looks at seconds for each token, and
compares only answers of like length: in classes of lengths, each from one power of four on.
"""

from dataclasses import dataclass
from enum import StrEnum

LENGTH_BASE_BITS = 2


class Measure(StrEnum):
    """What is timed."""

    DECODE = "decode"
    """Seconds from one answer token to the next."""
    PREFILL = "prefill"
    """Seconds to the first answer token, for each prompt token."""
    EMBEDDING = "embedding"
    """Seconds to the whole answer, for each input token."""


@dataclass(frozen=True, slots=True)
class LengthClass:
    """Answers that are compared with each other."""

    measure: Measure
    length_class: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds for each token of one answer."""

    length: LengthClass
    seconds: float


@dataclass(frozen=True, slots=True)
class ChatPace:
    """One chat answer; seconds count from when it was sent to the Endpoint, without our queue."""

    prompt_tokens: int
    answer_tokens: int
    first_token_seconds: float
    last_token_seconds: float

    def samples(self) -> tuple[Sample, ...]:
        prefill = _sample(Measure.PREFILL, self.prompt_tokens, self.first_token_seconds)
        gaps = self.answer_tokens - 1
        decode = _sample(Measure.DECODE, gaps, self.last_token_seconds - self.first_token_seconds)
        return prefill + decode


@dataclass(frozen=True, slots=True)
class EmbeddingPace:
    """One answer of an embedder."""

    input_tokens: int
    seconds: float

    def samples(self) -> tuple[Sample, ...]:
        return _sample(Measure.EMBEDDING, self.input_tokens, self.seconds)


Pace = ChatPace | EmbeddingPace


def _sample(measure: Measure, tokens: int, seconds: float) -> tuple[Sample, ...]:
    if tokens < 1 or seconds <= 0.0:
        return ()
    length_class = (tokens.bit_length() - 1) // LENGTH_BASE_BITS
    return (Sample(LengthClass(measure, length_class), seconds / tokens),)
