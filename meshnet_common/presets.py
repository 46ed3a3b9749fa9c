"""What the Mesh knows of a Model Preset and its Variants, without ever holding a weight.

Public model names: the bare preset name is its default Variant, any other Variant is
`<preset>-<quantization>`.
"""

from collections.abc import Mapping

import msgspec

from meshnet_common.shard_range import ShardRange
from meshnet_common.weights.manifest import Manifest

DTYPE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
GGUF_QUANTIZATIONS: Mapping[str, str] = {
    "Q4_0": "q4_0",
    "Q4_1": "q4_1",
    "Q8_0": "q8_0",
    "Q4_K": "q4k",
    "Q5_K": "q5k",
    "Q6_K": "q6k",
}
"""What the Variant of a GGUF file is called, by the kind of most weights in its Layers."""

ENCODERS: Mapping[str, int] = {
    "BertModel": 0,
    "DistilBertModel": 0,
    "MPNetModel": 2,
    "RobertaModel": 2,
    "XLMRobertaModel": 2,
}
"""Architectures that make embeddings of texts, and how many of their positions no text may use.

An encoder is small, and never split: it counts as one Layer.
"""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One concrete form of a Model Preset; Workers share a Route only within one Variant.

    Sizes are bytes on the device. `layer_bytes` has one entry per Layer, since layers may differ.
    `gguf` is the file that holds the weights, and its digest; without one they are the preset's
    safetensors.
    """

    quantization: str
    digest: str
    layer_bytes: tuple[int, ...]
    embedding_bytes: int
    head_bytes: int
    kv_bytes_per_token_per_layer: int
    wire_dtype: str
    gguf: str = ""
    gguf_sha256: str = ""

    @property
    def layer_count(self) -> int:
        return len(self.layer_bytes)

    @property
    def bytes_per_layer(self) -> int:
        """The largest Layer, the safe figure for `floor(vram / bytes_per_layer)`."""
        return max(self.layer_bytes)

    def range_bytes(self, shard_range: ShardRange) -> int:
        """Bytes of a Shard with its embeddings or output head where they belong."""
        size = sum(self.layer_bytes[shard_range.start : shard_range.end])
        if shard_range.start == 0:
            size += self.embedding_bytes
        if shard_range.end == self.layer_count:
            size += self.head_bytes
        return size


class ModelPreset(msgspec.Struct, frozen=True, kw_only=True):
    """A model that this Mesh agrees to serve.

    `source` is a folder with safetensors, a hub repository or an HTTP mirror of such a folder;
    `context_tokens` the longest prompt plus answer.
    """

    name: str
    source: str
    architecture: str
    hidden_size: int
    vocabulary_size: int
    context_tokens: int
    default_quantization: str
    variants: tuple[Variant, ...]
    manifest: Manifest | None = None
    """What is known of the source's bytes; only `/v1/presets` carries it, as it may be long."""

    @property
    def layer_count(self) -> int:
        return self.variants[0].layer_count

    @property
    def is_encoder(self) -> bool:
        """Whether it makes embeddings, and no answers."""
        return self.architecture in ENCODERS

    @property
    def numbered_layers(self) -> int | None:
        """Layers as its tensors' names count them; None for a model that is one Layer whole."""
        return None if self.is_encoder else self.layer_count

    def variant(self, quantization: str) -> Variant | None:
        return next((v for v in self.variants if v.quantization == quantization), None)

    def public_name(self, quantization: str) -> str:
        if quantization == self.default_quantization:
            return self.name
        return f"{self.name}-{quantization}"
