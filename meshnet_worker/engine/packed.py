"""Weights in fewer bits than they are computed in, and what the model's modules do with them.

A module with a packed weight keeps its parameter on the meta device; its `forward` is replaced by
one that unpacks. That happens on the instance, so the model's own code stays as it is.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from meshnet_common.errors import MeshnetError

Forward = Callable[[torch.Tensor], torch.Tensor]


class UnpackableWeightError(MeshnetError):
    """A weight cannot be kept packed."""


class PackedWeight(Protocol):
    """One weight as it lies on the device."""

    @property
    def size_bytes(self) -> int: ...

    def forward_of(self, module: nn.Module) -> Forward:
        """What a module computes with this weight; raises UnpackableWeightError."""
        ...


class StoredWeights(Protocol):
    """A checkpoint, as the Shard reads it; all raise CheckpointError."""

    def holds(self, name: str) -> bool: ...

    def packed_bytes(self, name: str) -> int | None:
        """Size on the device of a weight that is kept packed; None for any other."""
        ...

    def packed(self, name: str) -> PackedWeight:
        """Put a weight on the device that is kept packed."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """Read any other weight on the CPU, in the checkpoint's own dtype."""
        ...


def unpacked_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Choose what weights are unpacked to, when `dtype` is what the model computes in.

    On the CPU a product with a matrix that is used once is two to three times as fast in float32
    (128 rows: 2.1 ms instead of 7.2 for 1536 x 576).
    """
    return torch.float32 if device.type == "cpu" else dtype


def linear_unpacked(
    given: torch.Tensor, weights: Iterable[torch.Tensor], bias: torch.Tensor | None
) -> torch.Tensor:
    """Compute a linear map with a weight that comes in pieces of its rows, of any float dtype."""
    outputs = [functional.linear(given.to(piece.dtype), piece) for piece in weights]
    output = torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0]
    if bias is not None:
        output += bias
    return output.to(given.dtype)


def bias_of(linear: nn.Module) -> torch.Tensor | None:
    """A linear map's bias as it is now; it is loaded apart from the packed weight."""
    bias: torch.Tensor | None = getattr(linear, "bias", None)
    return bias


def is_linear(module: nn.Module) -> bool:
    """Whether it is a linear map and nothing more, so that its `forward` can be replaced."""
    return type(module) is nn.Linear or type(module) is Conv1D
