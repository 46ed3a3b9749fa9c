"""int8 and nf4 through bitsandbytes, which is an optional package and is imported here only.

The matrices of the Layers are quantized one by one as they are read, so a whole Layer never exists
in 16 bit. Everything else stays in the dtype that is computed in. Every row of a Batch is computed
alone: int8 without an outlier threshold (at bitsandbytes' default of 6.0 one Session's outlier
changes the others' outputs), nf4 by unpacking and a plain matrix product, for one row as for many.
Around int8's integer product numbers are float32: bitsandbytes' own kernels pass through float16,
whose range is smaller than bfloat16's.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from meshnet_common.presets import DTYPE_BYTES, GGUF_QUANTIZATIONS
from meshnet_worker.engine.checkpoint import CheckpointError
from meshnet_worker.engine.packed import (
    Forward,
    PackedWeight,
    StoredWeights,
    UnpackableWeightError,
    bias_of,
    is_linear,
    linear_unpacked,
    unpacked_dtype,
)

NF4_VALUES_PER_SCALE = 64
OLDEST_VERSION = (0, 50)
LARGEST_INT8 = 127.0
SMALLEST_SCALE = 1e-30
"""Of a row of zeros, which has no scale of its own."""


class QuantizationUnavailableError(UnpackableWeightError):
    """Nothing can be quantized here: bitsandbytes 0.50 or newer is not installed."""


def offered_quantizations() -> tuple[str, ...]:
    """Name the Variants that this machine can run."""
    return (*DTYPE_BYTES, *GGUF_QUANTIZATIONS.values(), *(PACKERS if _is_installed() else ()))


@dataclass(frozen=True, slots=True)
class Target:
    """Where weights go, and the dtype that they are computed in."""

    quantization: str
    dtype: torch.dtype
    device: torch.device


class QuantizedCheckpoint:
    """A checkpoint whose matrices are quantized as they are read."""

    def __init__(
        self, checkpoint: StoredWeights, matrices: Mapping[str, nn.Module], target: Target
    ) -> None:
        """`matrices` are the linear maps to be quantized, by the names of their weights.

        Raises QuantizationUnavailableError.
        """
        if not _is_installed():
            raise QuantizationUnavailableError(f"{target.quantization} needs it.")
        self._checkpoint = checkpoint
        self._sizes = {name: _outputs_and_inputs(module) for name, module in matrices.items()}
        self._transposed = {name for name, m in matrices.items() if isinstance(m, Conv1D)}
        self._packer = PACKERS[target.quantization]
        self._target = target

    def holds(self, name: str) -> bool:
        return self._checkpoint.holds(name)

    def packed_bytes(self, name: str) -> int | None:
        sizes = self._sizes.get(name)
        return self._packer.packed_bytes(*sizes) if sizes else None

    def packed(self, name: str) -> PackedWeight:
        """Read one matrix and quantize it on the device; raises CheckpointError."""
        matrix = self._checkpoint.read(name)
        matrix = matrix.t() if name in self._transposed else matrix
        if tuple(matrix.shape) != self._sizes[name]:
            shapes = f"{tuple(matrix.shape)} instead of {self._sizes[name]}"
            raise CheckpointError(f"{name} has the shape {shapes}.")
        weight = matrix.to(self._target.device, self._target.dtype).contiguous()
        return self._packer(weight)

    def read(self, name: str) -> torch.Tensor:
        return self._checkpoint.read(name)


def _outputs_and_inputs(module: nn.Module) -> tuple[int, int]:
    first, second = module.get_parameter("weight").shape
    return (second, first) if isinstance(module, Conv1D) else (first, second)


class Int8Weight:
    """A matrix of int8 with one float32 scale for each row of outputs."""

    def __init__(self, weight: torch.Tensor) -> None:
        """Quantize `[out, in]`."""
        self._values, scales, _ = _bitsandbytes().int8_vectorwise_quant(weight.to(torch.float16))
        # What both largest numbers stand for, the row's and this one, divided out once.
        self._scales = scales / LARGEST_INT8**2

    @staticmethod
    def packed_bytes(outputs: int, inputs: int) -> int:
        return outputs * inputs + outputs * 4

    @property
    def size_bytes(self) -> int:
        return _bytes_of(self._values, self._scales)

    def forward_of(self, module: nn.Module) -> Forward:
        """A linear map; raises UnpackableWeightError for anything else."""
        _check_linear(module)
        return lambda given: self._linear(given, bias_of(module))

    def _linear(self, given: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows = given.reshape(-1, given.shape[-1]).float()
        largest = rows.abs().amax(dim=1, keepdim=True).clamp_min_(SMALLEST_SCALE)
        values = (rows * (LARGEST_INT8 / largest)).round_().to(torch.int8)
        products = torch.ops.bitsandbytes.int8_linear_matmul.default(values, self._values)
        output: torch.Tensor = products.float().mul_(largest * self._scales)
        if bias is not None:
            output += bias
        return output.to(given.dtype).view(*given.shape[:-1], -1)


class Nf4Weight:
    """A matrix of 4-bit normal floats with one float32 scale for every 64 values."""

    def __init__(self, weight: torch.Tensor) -> None:
        """Quantize `[out, in]`."""
        self._functional = _bitsandbytes()
        self._values, self._state = self._functional.quantize_4bit(
            weight, blocksize=NF4_VALUES_PER_SCALE, quant_type="nf4", compress_statistics=False
        )
        self._state.dtype = unpacked_dtype(weight.device, weight.dtype)

    @staticmethod
    def packed_bytes(outputs: int, inputs: int) -> int:
        elements = outputs * inputs
        return -(-elements // 2) + -(-elements // NF4_VALUES_PER_SCALE) * 4

    @property
    def size_bytes(self) -> int:
        return _bytes_of(self._values, self._state.absmax)

    def forward_of(self, module: nn.Module) -> Forward:
        """A linear map; raises UnpackableWeightError for anything else."""
        _check_linear(module)
        return lambda given: self._linear(given, bias_of(module))

    def _linear(self, given: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        weight = self._functional.dequantize_4bit(self._values, self._state)
        return linear_unpacked(given, (weight,), bias)


PACKERS: Mapping[str, type[Int8Weight] | type[Nf4Weight]] = {"int8": Int8Weight, "nf4": Nf4Weight}
"""By the Variant's name."""


def _is_installed() -> bool:
    # Asked of the installation, not by importing: that takes two seconds.
    try:
        release = version("bitsandbytes").split(".")
    except PackageNotFoundError:
        return False
    return tuple(int(part) for part in release[:2]) >= OLDEST_VERSION


def _bitsandbytes() -> ModuleType:
    # At its import it tells that an optional package for faster kernels is missing.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    from bitsandbytes import functional as own

    return own


def _check_linear(module: nn.Module) -> None:
    if not is_linear(module):
        raise UnpackableWeightError(f"{type(module).__name__} is no plain linear map.")


def _bytes_of(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
