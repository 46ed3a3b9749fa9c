"""Writes models as llama.cpp would: its own names, and queries' and keys' rows in its own order."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, dequantize, get_tensor_name_map
from gguf.quants import quantize
from transformers import PreTrainedModel

from tests.gguf_files import random_blocks, write_gguf

F32 = GGMLQuantizationType.F32

Packer = Callable[[np.ndarray, GGMLQuantizationType], np.ndarray]


def randomly(values: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Pack other values: the format's own package cannot write all kinds."""
    return random_blocks(kind, *values.shape)


def save_gguf(
    model: PreTrainedModel, file: Path, kind: GGMLQuantizationType, pack: Packer = quantize
) -> Path:
    """Write matrices packed and all else as float32; the model is left with what was written."""
    architecture = model.config.model_type
    number = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(number, model.config.num_hidden_layers)
    tensors = {}
    for name, parameter in model.named_parameters():
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert known is not None
        values = parameter.detach().numpy()
        stored = F32
        if values.ndim == 2:
            stored, values = kind, pack(values, kind)
            parameter.data = torch.from_numpy(np.array(dequantize(values, kind)))
        tensors[known] = (_in_llama_order(values, known, model), stored)
    return write_gguf(file, architecture, model.config.num_hidden_layers, tensors)


def _in_llama_order(rows: np.ndarray, name: str, model: PreTrainedModel) -> np.ndarray:
    heads = {
        ".attn_q.": model.config.num_attention_heads,
        ".attn_k.": model.config.num_key_value_heads,
    }
    count = next((count for part, count in heads.items() if part in name), None)
    if model.config.model_type != "llama" or count is None:
        return rows
    # Both halves of a rotation lie side by side there, and half a head apart in transformers.
    halves = rows.reshape(count, 2, rows.shape[0] // count // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))
