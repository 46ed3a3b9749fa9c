"""From the header of a GGUF file to a Variant of a Model Preset; pure.

Workers keep the file's blocks packed, so sizes are the file's own, tensor by tensor: GGUF mixes
kinds, and Layers differ in size. What is not packed is held in the compute dtype.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from meshnet_common.presets import DTYPE_BYTES, GGUF_QUANTIZATIONS, ModelPreset, Variant
from meshnet_common.weights.gguf_header import GgufHeader, GgufTensor
from meshnet_tracker.presets.errors import GgufVariantError
from meshnet_tracker.presets.figures import COMPUTE_DTYPE
from meshnet_tracker.records import PresetRecord

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""In GGUF's words; others store matrices transposed, shifted or fused, which packed ones cannot."""

_LAYER = re.compile(r"blk\.([0-9]+)\.")
_EMBEDDING = "token_embd.weight"
_NORM = "output_norm.weight"
_OUTPUT = "output.weight"


def gguf_variant(record: PresetRecord, header: GgufHeader, file: str, sha256: str) -> Variant:
    """Work out the Variant that a file holds; raises GgufVariantError when it does not fit."""
    _check_fits(record.preset, header)
    layers = _layers(header, record.preset.layer_count)
    quantization = _quantization(tensor for layer in layers for tensor in layer)
    plain = next(
        variant
        for variant in (*record.preset.variants, *record.unserved)
        if variant.quantization == COMPUTE_DTYPE
    )
    embedding = _tensor(header, _EMBEDDING)
    head = (header.tensors.get(_OUTPUT, embedding), _tensor(header, _NORM))
    # The plain Variant's digest stands for the model's configuration and its own weights.
    facts = [plain.digest, sha256, quantization, COMPUTE_DTYPE, plain.wire_dtype]
    return Variant(
        quantization=quantization,
        digest=hashlib.sha256(msgspec.json.encode(facts)).hexdigest(),
        layer_bytes=tuple(_size(layer) for layer in layers),
        embedding_bytes=_size((embedding,)),
        head_bytes=_size(head),
        kv_bytes_per_token_per_layer=plain.kv_bytes_per_token_per_layer,
        wire_dtype=plain.wire_dtype,
        gguf=file,
        gguf_sha256=sha256,
    )


def _check_fits(preset: ModelPreset, header: GgufHeader) -> None:
    if header.architecture not in ARCHITECTURES:
        raise GgufVariantError(
            f"Its architecture is {header.architecture!r:.40}; this release keeps blocks packed "
            f"for {', '.join(ARCHITECTURES)}."
        )
    if any("_exps" in name for name in header.tensors):
        raise GgufVariantError("It has experts; this release keeps no blocks of those packed.")
    layer_count = header.number("block_count")
    embedding = _tensor(header, _EMBEDDING)
    found = (layer_count, embedding.shape)
    wanted = (preset.layer_count, (preset.vocabulary_size, preset.hidden_size))
    if found != wanted:
        raise GgufVariantError(
            f"It is not of {preset.name}: layers and embedding are {found} instead of {wanted}."
        )


def _layers(header: GgufHeader, layer_count: int) -> list[list[GgufTensor]]:
    layers: list[list[GgufTensor]] = [[] for _ in range(layer_count)]
    for name, tensor in header.tensors.items():
        place = _LAYER.match(name)
        if place is not None and int(place[1]) < layer_count:
            layers[int(place[1])].append(tensor)
    missing = [number for number, layer in enumerate(layers) if not layer]
    if missing:
        raise GgufVariantError(f"It has no tensors of the layers {missing[:5]}.")
    return layers


def _quantization(tensors: Iterable[GgufTensor]) -> str:
    elements: Counter[str] = Counter()
    for tensor in tensors:
        elements[tensor.kind.name] += tensor.elements
    most = max(sorted(elements), key=lambda kind: elements[kind])
    if most not in GGUF_QUANTIZATIONS:
        raise GgufVariantError(f"Most of its weights are {most}; register safetensors instead.")
    return GGUF_QUANTIZATIONS[most]


def _tensor(header: GgufHeader, name: str) -> GgufTensor:
    tensor = header.tensors.get(name)
    if tensor is None:
        raise GgufVariantError(f"It has no tensor {name}.")
    return tensor


def _size(tensors: Iterable[GgufTensor]) -> int:
    return sum(
        tensor.size_bytes if tensor.is_packed else tensor.elements * DTYPE_BYTES[COMPUTE_DTYPE]
        for tensor in tensors
    )
