"""How many bytes each Layer takes on a device, for each quantization; pure.

16- and 32-bit formats are exact. int8 and nf4 are those of bitsandbytes: matrices of the Layers
are quantized, with one float32 scale per row or per 64 values; everything else stays 16-bit. A
model of experts has neither: its experts are one fused parameter, which bitsandbytes leaves alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from meshnet_common.presets import DTYPE_BYTES, ENCODERS, Variant
from meshnet_common.weights.errors import ConfigError
from meshnet_common.weights.headers import TensorEntry
from meshnet_common.weights.outline import CheckpointOutline
from meshnet_tracker.presets.facts import ModelFacts

QUANTIZATIONS = (*DTYPE_BYTES, "int8", "nf4")

COMPUTE_DTYPE = "bfloat16"
"""What quantized weights are computed in, what is not quantized is held in, and the wire's."""

_SCALE_BYTES = 4
_NF4_VALUES_PER_SCALE = 64
_PARAMETERS: Mapping[str, Mapping[str, object]] = {
    "int8": {"scale_per": "row", "outlier_threshold": 0, "compute": COMPUTE_DTYPE},
    "nf4": {"scale_per": _NF4_VALUES_PER_SCALE, "scales": "float32", "compute": COMPUTE_DTYPE},
}
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


def known_quantizations(outline: CheckpointOutline) -> tuple[str, ...]:
    """List the quantizations that a model can be served in."""
    return tuple(DTYPE_BYTES) if _has_experts(outline) else QUANTIZATIONS


def variant_figures(
    facts: ModelFacts, outline: CheckpointOutline, quantization: str, digest: str
) -> Variant:
    """Work out one Variant's sizes; a head that shares the embedding's weights pays for them."""
    wire_dtype = quantization if quantization in DTYPE_BYTES else COMPUTE_DTYPE
    other = DTYPE_BYTES[wire_dtype]
    embeddings = (outline.token_embedding, *outline.other_embeddings)
    # An encoder has no head at all.
    shared = () if facts.architecture in ENCODERS else (outline.token_embedding,)
    output = outline.output or shared
    return Variant(
        quantization=quantization,
        digest=digest,
        layer_bytes=tuple(
            sum(_layer_tensor_bytes(tensor, quantization) for tensor in layer)
            for layer in outline.layers
        ),
        embedding_bytes=sum(tensor.elements for tensor in embeddings) * other,
        head_bytes=sum(tensor.elements for tensor in (*outline.norms, *output)) * other,
        kv_bytes_per_token_per_layer=facts.kv_values * DTYPE_BYTES[wire_dtype],
        wire_dtype=wire_dtype,
    )


def digest_input(
    config: Mapping[str, Any], tensors: Iterable[TensorEntry], quantization: str
) -> bytes:
    """Write down what makes a Variant the same one everywhere, for hashing."""
    entries = sorted((tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)
    parameters = _PARAMETERS.get(quantization, {"compute": quantization})
    facts = [config, entries, quantization, parameters]
    return msgspec.json.encode(facts, order="deterministic")


def _has_experts(outline: CheckpointOutline) -> bool:
    return any(
        "expert" in tensor.name or (len(tensor.shape) == 3 and "conv" not in tensor.name)
        for layer in outline.layers
        for tensor in layer
    )


def _layer_tensor_bytes(tensor: TensorEntry, quantization: str) -> int:
    if quantization in DTYPE_BYTES:
        return tensor.elements * DTYPE_BYTES[quantization]
    if len(tensor.shape) != 2:
        return tensor.elements * 2
    if quantization == "int8":
        return tensor.elements + tensor.shape[0] * _SCALE_BYTES
    scales = -(-tensor.elements // _NF4_VALUES_PER_SCALE)
    return -(-tensor.elements // 2) + scales * _SCALE_BYTES
