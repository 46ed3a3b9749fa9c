"""How the Tail Worker draws, and what it tells of a draw.

A draw depends on the logits, on these, on the position, and on the ids before it: nothing that one
process alone knows. So whichever Tail Worker takes over draws the same.
"""

from typing import Annotated

import msgspec

MOST_LOGPROBS = 20
"""Alternatives of which the log probabilities are told, at most."""
LEAST_LOGPROB = -9999.0
"""Stands for impossible: no infinity goes over a wire."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the Tail Worker draws; what is left out changes nothing."""

    temperature: float
    """The most likely token at 0."""
    top_p: float
    """Of the most likely tokens, the fewest that together are at least so likely."""
    seed: int
    top_k: int = 0
    """So many of the most likely tokens; all of them at 0."""
    min_p: float = 0.0
    """Tokens at least so likely as the likeliest, times this."""
    repetition_penalty: float = 1.0
    """Divides the positive logits of ids in prompt and answer, and multiplies the negative ones."""
    frequency_penalty: float = 0.0
    """Taken off a logit once for each time that the answer has its id."""
    presence_penalty: float = 0.0
    """Taken off a logit if the answer has its id."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Ids, and what is added to their logits."""
    end_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    """None of `end_ids` is drawn among so many first tokens of the answer."""
    logprobs: int | None = None
    """Log probabilities are told of the drawn token and of so many of the most likely; None: of
    none."""
    grammar: str = ""
    """What the whole answer has to match; anything if empty."""

    @property
    def uses_answer(self) -> bool:
        """Whether a draw depends on the answer so far."""
        has_penalty = bool(self.frequency_penalty or self.presence_penalty)
        return has_penalty or self.uses_prompt or bool(self.grammar) or self.min_tokens > 0

    @property
    def uses_prompt(self) -> bool:
        """Whether a draw depends on the prompt's ids."""
        return self.repetition_penalty != 1.0


class History(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a Session's draws depend on besides its logits, as its Head Worker knows it."""

    answer_start: int
    """The position of the answer's first token."""
    answer_ids: tuple[int, ...] = ()
    """The answer so far."""
    prompt_ids: tuple[int, ...] = ()
    """Only where the draw depends on them."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of the probabilities that the model itself gave, before any parameter."""

    logprob: float
    top: Annotated[tuple[tuple[int, float], ...], msgspec.Meta(max_length=MOST_LOGPROBS)] = ()
    """The most likely ids, the likeliest first; of equals the lower id first."""
