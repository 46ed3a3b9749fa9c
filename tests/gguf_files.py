"""Small GGUF files, written by the format's own package."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

LAYERS = 3
HIDDEN_SIZE = 32
VOCABULARY = 64

Tensors = Mapping[str, tuple[np.ndarray, GGMLQuantizationType]]


def write_gguf(file: Path, architecture: str, layer_count: int, tensors: Tensors) -> Path:
    """Write tensors of float32 values, or of bytes that are packed already."""
    writer = GGUFWriter(file, architecture)
    writer.add_block_count(layer_count)
    writer.add_array("tokenizer.ggml.tokens", ["<end>", "w1"])
    writer.add_array("tokenizer.ggml.scores", [0.0, 1.0])
    for name, (values, kind) in tensors.items():
        packed = values if values.dtype == np.uint8 else quantize(values, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def random_blocks(kind: GGMLQuantizationType, rows: int, columns: int) -> np.ndarray:
    """Packed rows of random bits, with scales that are small numbers: `[rows, bytes]`."""
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(6)
    shape = (rows, columns // block_values, block_bytes)
    blocks = generator.integers(0, 256, shape, dtype=np.uint8)
    scales = generator.uniform(0.001, 0.01, (*shape[:2], 2)).astype(np.float16).view(np.uint8)
    # The scale stands first in a block, with a minimum behind it in some; in Q6_K it stands last.
    if kind == GGMLQuantizationType.Q6_K:
        blocks[..., -2:] = scales[..., :2]
    else:
        size = 4 if kind.name in {"Q4_1", "Q4_K", "Q5_K"} else 2
        blocks[..., :size] = scales[..., :size]
    return blocks.reshape(rows, -1)


def tiny_llama_gguf(file: Path, kind: str, layer_count: int = LAYERS) -> Path:
    """Write the tensors that the Tracker needs to see; each Layer has one matrix and one norm."""
    packed, plain = GGMLQuantizationType[kind], GGMLQuantizationType.F32
    matrix = np.ones((HIDDEN_SIZE, HIDDEN_SIZE), np.float32)
    norm = (np.ones(HIDDEN_SIZE, np.float32), plain)
    tensors = {
        "token_embd.weight": (np.ones((VOCABULARY, HIDDEN_SIZE), np.float32), packed),
        "output_norm.weight": norm,
    }
    for layer in range(layer_count):
        tensors[f"blk.{layer}.attn_q.weight"] = (matrix, packed)
        tensors[f"blk.{layer}.attn_norm.weight"] = norm
    return write_gguf(file, "llama", layer_count, tensors)
