"""Unpacks the blocks of GGUF files, vectorised over all blocks at once.

Each function takes blocks `[blocks, bytes]` (uint8) and returns `[blocks, values]` in float32, bit
for bit what the format's own package gives. The layouts are ggml's.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from meshnet_common.weights.gguf_header import GgufKind
from meshnet_worker.engine.packed import (
    Forward,
    UnpackableWeightError,
    bias_of,
    is_linear,
    linear_unpacked,
    unpacked_dtype,
)

VALUES_AT_ONCE = 1 << 18
"""Rows are unpacked in pieces that stay in the cache; no whole matrix ever exists unpacked."""


class GgufWeight:
    """A matrix `[rows, bytes]` of packed blocks, as in the file."""

    def __init__(self, blocks: torch.Tensor, kind: GgufKind, dtype: torch.dtype) -> None:
        if kind.name not in _UNPACKED:
            raise UnpackableWeightError(f"{kind.name} is no kind that this release unpacks.")
        self._blocks = blocks
        self._kind = kind
        self._dtype = dtype
        self._unpacked = unpacked_dtype(blocks.device, dtype)
        columns = blocks.shape[1] // kind.block_bytes * kind.block_values
        self._pieces = torch.split(blocks, max(1, VALUES_AT_ONCE // columns))

    @property
    def size_bytes(self) -> int:
        return self._blocks.numel()

    def forward_of(self, module: nn.Module) -> Forward:
        """A linear map or an embedding; raises UnpackableWeightError for anything else."""
        if is_linear(module):
            return lambda given: self._linear(given, bias_of(module))
        if type(module) is nn.Embedding:
            return lambda ids: unpack(self._blocks[ids], self._kind).to(self._dtype)
        raise UnpackableWeightError(f"{type(module).__name__} is no plain linear map.")

    def _linear(self, given: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        pieces = (unpack(piece, self._kind).to(self._unpacked) for piece in self._pieces)
        return linear_unpacked(given, pieces, bias)


def unpack(rows: torch.Tensor, kind: GgufKind) -> torch.Tensor:
    """Unpack rows `[..., bytes]` (uint8) to `[..., values]` (float32)."""
    values = _UNPACKED[kind.name](rows.reshape(-1, kind.block_bytes))
    return values.view(*rows.shape[:-1], -1)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 2:], 16).sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 4:], 16).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    quants = _nibbles(blocks[:, 16:], 32).view(-1, 8, 32)
    return _scaled_k(quants, blocks)


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    quants = _nibbles(blocks[:, 48:], 32).view(-1, 8, 32)
    # The fifth bit of group k is bit k of these 32 bytes.
    places = torch.arange(8, dtype=torch.uint8, device=blocks.device).view(1, 8, 1)
    fifth = (blocks[:, None, 16:48] >> places) & 1
    return _scaled_k(quants.add_(fifth.float(), alpha=16), blocks)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    low = _nibbles(blocks[:, :128], 64)
    places = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device).view(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> places) & 3
    quants = low.add_(high.reshape(-1, 256).float(), alpha=16).sub_(32)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    return quants.view(-1, 16, 16).mul_(scales.unsqueeze(2)).view(-1, 256)


_UNPACKED: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def _half(blocks: torch.Tensor, place: int) -> torch.Tensor:
    """The float16 number at a place of every block, `[blocks, 1]`."""
    return blocks[:, place : place + 2].contiguous().view(torch.float16).float()


def _nibbles(quants: torch.Tensor, group: int) -> torch.Tensor:
    """Of every `group` bytes first all low halves, then all high halves, as float32."""
    # Contiguous first: bits are then shifted many at once, in a fifth of the time.
    grouped = quants.contiguous().view(quants.shape[0], -1, group)
    return torch.cat((grouped & 15, grouped >> 4), dim=2).view(quants.shape[0], -1).float()


def _scaled_k(quants: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Scale eight groups of 32 values; their scales and minima are six bits each.

    byte 0-3   2 high bits of scale 4-7   | 6 bits of scale 0-3
    byte 4-7   2 high bits of minimum 4-7 | 6 bits of minimum 0-3
    byte 8-11  4 low bits of minimum 4-7  | 4 low bits of scale 4-7
    """
    first, second, third = blocks[:, 4:16].view(-1, 3, 4).unbind(1)
    scales = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), dim=1)
    minima = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), dim=1)
    scale = (_half(blocks, 0) * scales.float()).unsqueeze(2)
    minimum = (_half(blocks, 2) * minima.float()).unsqueeze(2)
    return quants.mul_(scale).sub_(minimum).view(-1, 256)
