"""Draws tokens from logits, and says how likely they were; pure functions of what they are given.

So a Worker that takes over draws the same token. The random number is a hash, not a generator's
state, and the arithmetic runs in float64 on the CPU, so that it does not depend on the device.
Equal logits go by their ids.
"""

import hashlib
import math

import torch

from meshnet_common.protocol.sampling import LEAST_LOGPROB, Sampling, TokenLogprobs

FIRST_PLACES = (256, 4096)
"""Most draws end among so many of the likeliest tokens: all of them are rarely put in order."""
NO_NUMBER = "the logits hold a value that is not a number"


def greedy(logits: torch.Tensor) -> list[int | ValueError]:
    """The largest of each row of `[rows, vocabulary]`, or why there is none.

    One look at the winner finds a value that is no number, since it counts as the largest.
    """
    largest, ids = logits.max(dim=-1)
    return [
        _unfit(value) or token_id
        for value, token_id in zip(largest.tolist(), ids.tolist(), strict=True)
    ]


def bias(logits: torch.Tensor, ids: torch.Tensor, amounts: torch.Tensor) -> None:
    """Add to the logits of some ids, in place."""
    logits.index_add_(0, ids, amounts)


def penalise_repetition(logits: torch.Tensor, ids: torch.Tensor, penalty: float) -> None:
    """Make every id that is there at all less likely, in place.

    Keskar et al., "CTRL" (2019), section 4.1, as transformers does it: positive logits are divided
    and negative ones multiplied, once, however often the id is there.
    """
    before = logits[ids]
    logits[ids] = torch.where(before < 0, before * penalty, before / penalty)


def penalise_answer(
    logits: torch.Tensor, ids: torch.Tensor, frequency: float, presence: float
) -> None:
    """Take `frequency` off for each time that an id is there, and `presence` once, in place.

    OpenAI's API reference, "Frequency and presence penalties".
    """
    # An id that is there twice is written twice, with the same value.
    logits[ids] -= frequency * torch.bincount(ids)[ids] + presence


def forbid(logits: torch.Tensor, ids: torch.Tensor) -> None:
    """Make some ids impossible, in place, unless nothing else is left."""
    before = logits[ids]
    logits[ids] = -math.inf
    if bool(logits.max() == -math.inf):
        logits[ids] = before


def draw(logits: torch.Tensor, sampling: Sampling, position: int) -> int:
    """Draw from logits `[vocabulary]` in float64: the largest at temperature 0.

    Else what is left goes through temperature, `top_k`, `top_p` (Holtzman et al., "The Curious Case
    of Neural Text Degeneration", 2020: the smallest set that reaches it) and `min_p` (Nguyen et
    al., "Turning Up the Heat: Min-p Sampling", 2024), in transformers' order. Raises ValueError if
    a logit is not a number, or none is left.
    """
    largest = float(logits.max())
    unfit = _unfit(largest)
    if unfit is not None:
        raise unfit
    if sampling.temperature == 0.0:
        return int(logits.argmax())
    if largest == math.inf:
        raise ValueError(NO_NUMBER)
    # Relative to the largest, so that no temperature, however small, makes an infinity of it.
    scaled = (logits - largest) / sampling.temperature
    number = uniform(sampling.seed, position)
    limit = sampling.top_k or len(logits)
    if limit < len(logits):
        ids = likeliest(logits, limit)
        probabilities = torch.softmax(scaled[ids], dim=-1)
        return int(ids[_whole_place(probabilities, sampling, number)])
    probabilities = torch.softmax(scaled, dim=-1)
    for count in FIRST_PLACES:
        ids = likeliest(logits, count)
        place = _place(probabilities[ids], sampling, number)
        if place is not None:
            return int(ids[place])
    ids = likeliest(logits, len(logits))
    return int(ids[_whole_place(probabilities[ids], sampling, number)])


def logprobs_of(logits: torch.Tensor, token_id: int, count: int) -> TokenLogprobs:
    """How likely a token and the `count` likeliest were, by the model's own logits in float64."""
    ids = likeliest(logits, count)
    every = torch.cat((logits[token_id].unsqueeze(0), logits[ids])) - logits.logsumexp(dim=-1)
    # In this order no NaN, which an infinite logit gives, gets through.
    own, *others = (max(LEAST_LOGPROB, value) for value in every.tolist())
    return TokenLogprobs(own, tuple(zip(ids.tolist(), others, strict=True)))


def likeliest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` largest, the largest first and of equals the lower id first."""
    if count >= len(logits):
        return logits.sort(descending=True, stable=True).indices
    top = logits.topk(count + 1)
    ids = top.indices[:count]
    if count and top.values[count - 1] == top.values[count]:
        # Which of equals `topk` takes is nobody's promise.
        ids = (logits >= top.values[count]).nonzero().flatten()
    else:
        ids = ids.sort().values
    return ids[logits[ids].sort(descending=True, stable=True).indices[:count]]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _place(probabilities: torch.Tensor, sampling: Sampling, number: float) -> int | None:
    """The place that a number draws, of the first in order; None if it may be a later one."""
    kept = _kept(probabilities, sampling)
    if kept is None and (sampling.top_p < 1.0 or sampling.min_p > 0.0):
        return None
    reached = probabilities.cumsum(dim=-1)
    total = 1.0 if kept is None else float(reached[kept - 1])
    place = int(torch.searchsorted(reached, number * total, right=True))
    if kept is None:
        return place if place < len(probabilities) else None
    return min(place, kept - 1)


def _whole_place(probabilities: torch.Tensor, sampling: Sampling, number: float) -> int:
    """The same, of all in order: what is impossible is never drawn."""
    kept = _kept(probabilities, sampling) or int((probabilities > 0).sum())
    reached = probabilities[:kept].cumsum(dim=-1)
    place = int(torch.searchsorted(reached, number * float(reached[-1]), right=True))
    return min(place, kept - 1)


def _kept(probabilities: torch.Tensor, sampling: Sampling) -> int | None:
    """How many of the first in order `top_p` and `min_p` keep; None if it may be more."""
    kept = len(probabilities) + 1
    if sampling.top_p < 1.0:
        reached = probabilities.cumsum(dim=-1)
        kept = min(kept, int(torch.searchsorted(reached, sampling.top_p)) + 1)
    if sampling.min_p > 0.0:
        likely = int((probabilities >= sampling.min_p * probabilities[0]).sum())
        kept = min(kept, likely if likely < len(probabilities) else kept)
    return kept if kept <= len(probabilities) else None


def _unfit(largest: float) -> ValueError | None:
    if math.isnan(largest):
        return ValueError(NO_NUMBER)
    if largest == -math.inf:
        return ValueError("no token is left to draw")
    return None
