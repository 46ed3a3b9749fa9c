"""How rows look at what is held, and attention written out where no kernel does it."""

from typing import NamedTuple

import torch


class Look(NamedTuple):
    """What a model asks of attention beside queries, keys and values."""

    scaling: float | None
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None

    @property
    def is_plain(self) -> bool:
        """Whether fused kernels know it."""
        return self.softcap is None and self.sinks is None


def written_out(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    look: Look,
) -> torch.Tensor:
    """Attend `[..., heads, tokens, size]` over `[..., KV heads, held, size]`.

    `mask` is True where a token may look. Returns `[..., heads, tokens, value size]`.
    """
    # Soft caps and attention sinks have no fused kernel; written out as their papers do.
    shared_by = query.shape[-3] // keys.shape[-3]
    keys = keys.repeat_interleave(shared_by, dim=-3)
    values = values.repeat_interleave(shared_by, dim=-3)
    scaling = look.scaling if look.scaling is not None else query.shape[-1] ** -0.5
    scores = (query @ keys.transpose(-1, -2)).float() * scaling
    if look.softcap is not None:
        scores = torch.tanh(scores / look.softcap) * look.softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if look.sinks is not None:
        sinks = look.sinks.float().reshape(-1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat((scores, sinks), dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return weights.to(values.dtype) @ values
