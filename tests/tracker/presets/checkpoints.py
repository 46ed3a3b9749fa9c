"""Checkpoints of no weight: the headers of real architectures with tensors of a few bytes."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WIDTHS = {"F32": 4, "F16": 2, "BF16": 2, "BOOL": 1}

Shapes = Mapping[str, tuple[int, ...]]

LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
GPT2_CONFIG = {
    "model_type": "gpt2",
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "vocab_size": 50,
    "n_positions": 64,
}


def llama_tensors(layers: int = 3) -> dict[str, tuple[int, ...]]:
    """Each Layer has 8 x 8 + 8 = 72 values; embeddings 400, final norm 8, tied head."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (50, 8),
        "model.norm.weight": (8,),
    }
    for layer in range(layers):
        shapes[f"model.layers.{layer}.self_attn.q_proj.weight"] = (8, 8)
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (8,)
    return shapes


def gpt2_tensors() -> dict[str, tuple[int, ...]]:
    """Each Layer has 8 x 24 + 24 = 216 values, and a mask that no loader takes."""
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (50, 8),
        "wpe.weight": (64, 8),
        "ln_f.weight": (8,),
    }
    for layer in range(2):
        shapes[f"h.{layer}.attn.c_attn.weight"] = (8, 24)
        shapes[f"h.{layer}.attn.c_attn.bias"] = (24,)
        shapes[f"h.{layer}.attn.bias"] = (1, 1, 64, 64)
    return shapes


def header_of(shapes: Shapes, dtype: str = "BF16") -> tuple[bytes, int]:
    """Return the JSON and the number of weight bytes behind it."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = WIDTHS[dtype]
        for dimension in shape:
            size *= dimension
        offsets = [offset, offset + size]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        offset += size
    return json.dumps(entries).encode(), offset


def safetensors_bytes(shapes: Shapes, dtype: str = "BF16") -> bytes:
    header, weight_bytes = header_of(shapes, dtype)
    return struct.pack("<Q", len(header)) + header + bytes(weight_bytes)


def write_checkpoint(
    folder: Path,
    config: Mapping[str, Any] | None = None,
    shapes: Shapes | None = None,
    dtype: str = "BF16",
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG if config is None else config))
    content = safetensors_bytes(llama_tensors() if shapes is None else shapes, dtype)
    (folder / "model.safetensors").write_bytes(content)
    return folder
