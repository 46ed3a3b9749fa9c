"""What config.json says of a model, under the names that the architectures use for it; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshnet_common.presets import ENCODERS
from meshnet_common.weights.errors import ConfigError

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads")
_KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "swa_num_key_value_heads",
    "num_global_key_value_heads",
)
_HEAD_SIZES = ("head_dim", "attention_head_dim", "global_head_dim", "swa_head_dim")
_CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
)
_VOCABULARY = ("vocab_size",)
_UNSTATED_CONTEXT_TOKENS = 2048
"""Models whose positions have no end, such as recurrent ones, need not state any."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The architecture facts of one model.

    `kv_values` is the most that one position takes in one Layer: numbers in keys and values.
    """

    architecture: str
    layer_count: int
    hidden_size: int
    vocabulary_size: int
    context_tokens: int
    kv_values: int


def model_facts(config: Mapping[str, Any]) -> ModelFacts:
    """Read a config; raises ConfigError that names what is missing."""
    if "quantization_config" in config:
        raise ConfigError("Its weights are quantized already; give the original checkpoint.")
    nested = config.get("text_config")
    fields = {**config, **nested} if isinstance(nested, dict) else dict(config)
    hidden_size = _required(fields, _HIDDEN)
    architecture = _architecture(fields)
    context_tokens = _optional(fields, _CONTEXT) or _UNSTATED_CONTEXT_TOKENS
    return ModelFacts(
        architecture=architecture,
        layer_count=_layer_count(fields),
        hidden_size=hidden_size,
        vocabulary_size=_required(fields, _VOCABULARY),
        context_tokens=context_tokens - ENCODERS.get(architecture, 0),
        kv_values=0 if architecture in ENCODERS else _kv_values(fields, hidden_size),
    )


def _layer_count(fields: Mapping[str, Any]) -> int:
    kinds = fields.get("layers_block_type")
    if isinstance(kinds, list) and kinds and _optional(fields, _LAYERS) is None:
        return len(kinds)
    return _required(fields, _LAYERS)


def _kv_values(fields: Mapping[str, Any], hidden_size: int) -> int:
    heads = _optional(fields, _HEADS)
    if heads is None:
        # A state instead of keys and values; counted as if each position had some.
        return 2 * hidden_size
    heads = max(heads, _optional(fields, ("swa_num_attention_heads",)) or 0)
    latent = [_optional(fields, (name,)) or 0 for name in ("qk_nope_head_dim", "qk_rope_head_dim")]
    value_size = _optional(fields, ("v_head_dim",)) or 0
    if fields.get("kv_lora_rank") and value_size:
        # Attention runs on keys and values that are expanded for every head.
        return heads * (sum(latent) + value_size)
    stated = [_optional(fields, (name,)) or 0 for name in _HEAD_SIZES]
    size = max(stated) or hidden_size // heads
    kv_heads = [_optional(fields, (name,)) or 0 for name in _KV_HEADS]
    if value_size:
        # Where values have a size of their own, some Layers group heads otherwise than others.
        kv_heads.append(heads)
    return (max(kv_heads) or heads) * (size + max(size, value_size))


def _architecture(fields: Mapping[str, Any]) -> str:
    names = fields.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    model_type = fields.get("model_type")
    if isinstance(model_type, str) and model_type:
        return model_type
    raise ConfigError("It has neither `architectures` nor `model_type`.")


def _required(fields: Mapping[str, Any], names: tuple[str, ...]) -> int:
    value = _optional(fields, names)
    if value is None:
        raise ConfigError(f"It has none of: {', '.join(names)}.")
    return value


def _optional(fields: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"`{name}` must be a positive whole number.")
        return value
    return None
