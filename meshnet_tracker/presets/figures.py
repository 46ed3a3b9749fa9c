"""How many bytes each Layer takes on a device, for each quantization; pure.

16- and 32-bit formats are exact. int8 and nf4 are those of bitsandbytes: matrices of the Layers
are quantized, with one float32 scale per row or per 64 values; everything else stays 16-bit.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from meshnet_common.presets import DTYPE_BYTES, Variant
from meshnet_common.weights.errors import ConfigError
from meshnet_common.weights.headers import TensorEntry
from meshnet_common.weights.outline import CheckpointOutline
from meshnet_tracker.presets.facts import ModelFacts

QUANTIZATIONS = (*DTYPE_BYTES, "int8", "nf4")

_SCALE_BYTES = 4
_NF4_VALUES_PER_SCALE = 64
_DTYPES: Mapping[str, str] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def checkpoint_dtype(tensors: Iterable[TensorEntry]) -> str:
    """Name the dtype of most weights; raises ConfigError when it is not a plain float."""
    elements: Counter[str] = Counter()
    for tensor in tensors:
        elements[tensor.dtype] += tensor.elements
    most = max(sorted(elements), key=lambda dtype: elements[dtype], default="none")
    if most not in _DTYPES:
        raise ConfigError(f"Its weights are {most}; supported are {', '.join(_DTYPES)}.")
    return _DTYPES[most]


def variant_figures(
    facts: ModelFacts, outline: CheckpointOutline, quantization: str, digest: str
) -> Variant:
    """Work out one Variant's sizes; a head that shares the embedding's weights pays for them."""
    other = DTYPE_BYTES.get(quantization, 2)
    embeddings = (outline.token_embedding, *outline.other_embeddings)
    output = outline.output or (outline.token_embedding,)
    wire_dtype = quantization if quantization in DTYPE_BYTES else "bfloat16"
    return Variant(
        quantization=quantization,
        digest=digest,
        layer_bytes=tuple(
            sum(_layer_tensor_bytes(tensor, quantization) for tensor in layer)
            for layer in outline.layers
        ),
        embedding_bytes=sum(tensor.elements for tensor in embeddings) * other,
        head_bytes=sum(tensor.elements for tensor in (*outline.norms, *output)) * other,
        kv_bytes_per_token_per_layer=2 * facts.kv_size * DTYPE_BYTES[wire_dtype],
        wire_dtype=wire_dtype,
    )


def digest_input(
    config: Mapping[str, Any], tensors: Iterable[TensorEntry], quantization: str
) -> bytes:
    """Write down what makes a Variant the same one everywhere, for hashing."""
    entries = sorted((tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)
    return msgspec.json.encode([config, entries, quantization], order="deterministic")


def _layer_tensor_bytes(tensor: TensorEntry, quantization: str) -> int:
    if quantization in DTYPE_BYTES:
        return tensor.elements * DTYPE_BYTES[quantization]
    if len(tensor.shape) != 2:
        return tensor.elements * 2
    if quantization == "int8":
        return tensor.elements + tensor.shape[0] * _SCALE_BYTES
    scales = -(-tensor.elements // _NF4_VALUES_PER_SCALE)
    return -(-tensor.elements // 2) + scales * _SCALE_BYTES
