"""Masks for tests, of which each decides itself when it is ready."""

from collections.abc import Callable, Sequence

import torch

Forbid = Callable[[torch.Tensor, Sequence[int]], object]


class PlainMask:
    """Forbids what a function says."""

    def __init__(self, forbid: Forbid, *, is_ready: bool = True) -> None:
        self.is_ready = is_ready
        self._forbid = forbid

    def __call__(self, logits: torch.Tensor, answer_ids: Sequence[int]) -> None:
        self._forbid(logits, answer_ids)
