"""Reads single tensors out of a GGUF file; blocks stay packed, bytes as in the file.

The file is mapped, so only the tensors that are asked for are read from disk. Which tensor is
which parameter is told by the format's own tables; the order of rows that llama.cpp gives to
queries and keys is undone by transformers' own code, on rows that stay packed.
"""

import mmap
from pathlib import Path

import numpy as np
import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map
from transformers import PreTrainedConfig
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    LlamaTensorProcessor,
    TensorProcessor,
)

from meshnet_common.weights.gguf_header import GgufError, GgufTensor, parse_gguf_header
from meshnet_worker.engine.checkpoint import CheckpointError
from meshnet_worker.engine.gguf_blocks import GgufWeight

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_ROW_MOVERS = (TensorProcessor, LlamaTensorProcessor)
"""These leave rows as they are or move whole rows; others compute with values."""
_SUFFIXES = (".weight", ".bias")


class GgufCheckpoint:
    """The tensors of one file by the model's own names; raises CheckpointError."""

    def __init__(
        self, file: str, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._file = Path(file)
        self._dtype = dtype
        self._device = device
        try:
            with self._file.open("rb") as opened:
                self._data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            header = parse_gguf_header(memoryview(self._data))
        # An empty file cannot be mapped, which is a ValueError.
        except (GgufError, OSError, ValueError) as error:
            raise CheckpointError(f"{file}: {error}") from error
        self._tensors = header.tensors
        layer_count = config.get_text_config().num_hidden_layers
        self._names = get_tensor_name_map(_architecture(header.architecture), layer_count)
        processor: type[TensorProcessor] = TENSOR_PROCESSORS.get(
            header.architecture, TensorProcessor
        )
        if processor not in _ROW_MOVERS:
            raise CheckpointError(f"{header.architecture} cannot be kept packed by this release.")
        self._processor = processor(config=config.get_text_config().to_dict())

    def holds(self, name: str) -> bool:
        return self._find(name) is not None

    def packed_bytes(self, name: str) -> int | None:
        tensor = self._find(name)
        return tensor.size_bytes if tensor is not None and tensor.is_packed else None

    def packed(self, name: str) -> GgufWeight:
        """Put a packed matrix on the device; raises CheckpointError."""
        tensor = self._get(name)
        return GgufWeight(self._rows(tensor).to(self._device), tensor.kind, self._dtype)

    def read(self, name: str) -> torch.Tensor:
        """Read a tensor that is not packed, on the CPU; raises CheckpointError."""
        tensor = self._get(name)
        return self._rows(tensor).view(_DTYPES[tensor.kind.name]).view(tensor.shape)

    def _find(self, name: str) -> GgufTensor | None:
        known = self._names.get_name(name, try_suffixes=_SUFFIXES)
        return None if known is None else self._tensors.get(known)

    def _get(self, name: str) -> GgufTensor:
        tensor = self._find(name)
        if tensor is None:
            raise CheckpointError(f"{self._file} holds no tensor {name}.")
        return tensor

    def _rows(self, tensor: GgufTensor) -> torch.Tensor:
        """Read a tensor as rows of bytes, in the order that the model has them in."""
        raw = np.frombuffer(self._data, np.uint8, tensor.size_bytes, tensor.start)
        rows = self._processor.process(raw.reshape(tensor.shape[0], -1), tensor.name).weights
        # A copy: torch refuses to share what may not be written, and the map need not stay.
        return torch.from_numpy(np.array(rows))


def _architecture(name: str) -> MODEL_ARCH:
    for architecture, known in MODEL_ARCH_NAMES.items():
        if known == name:
            return architecture
    raise CheckpointError(f"A GGUF file of the architecture {name!r:.40} is not known here.")
