"""Draws a token from logits; the draw depends on (seed, position) and nothing else.

So a Worker that takes over draws the same token. The random number is a hash, not a generator's
state, and the arithmetic runs in float64 on the CPU, so that it does not depend on the device.
"""

import hashlib

import torch

from meshnet_worker.engine_port import Draw


def choose(logits: torch.Tensor, draw: Draw, position: int) -> int:
    """Choose from logits `[vocabulary]`: the largest at temperature 0, else by nucleus sampling.

    Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020): the smallest set of
    tokens whose probability reaches `top_p`. Raises ValueError if a logit is not a number.
    """
    if draw.temperature == 0.0:
        return _largest(logits)
    # Relative to the largest, so that no temperature, however small, makes an infinity of it.
    exact = logits.double().cpu()
    scaled = (exact - exact.max()) / draw.temperature
    probabilities, order = torch.softmax(scaled, dim=-1).sort(descending=True, stable=True)
    reached = probabilities.cumsum(dim=-1)
    if not bool(reached[-1] > 0):
        raise ValueError("the logits hold a value that is not a number")
    nucleus = int(torch.searchsorted(reached, draw.top_p)) + 1
    nucleus = min(nucleus, len(order))
    threshold = uniform(draw.seed, position) * float(reached[nucleus - 1])
    place = int(torch.searchsorted(reached[:nucleus], threshold, right=True))
    return int(order[min(place, nucleus - 1)])


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _largest(logits: torch.Tensor) -> int:
    # argmax takes NaN for the largest, so one look at the winner finds any of them.
    winner = int(logits.argmax())
    if bool(torch.isnan(logits[winner])):
        raise ValueError("the logits hold a value that is not a number")
    return winner
