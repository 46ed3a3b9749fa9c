"""What config.json says of a model, under the names that the architectures use for it; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshnet_common.weights.errors import ConfigError

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_VOCABULARY = ("vocab_size",)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The architecture facts of one model; `kv_size` is the width of a Layer's keys, in values."""

    architecture: str
    layer_count: int
    hidden_size: int
    vocabulary_size: int
    context_tokens: int
    kv_size: int


def model_facts(config: Mapping[str, Any]) -> ModelFacts:
    """Read a config; raises ConfigError that names what is missing."""
    if "quantization_config" in config:
        raise ConfigError("Its weights are quantized already; give the original checkpoint.")
    nested = config.get("text_config")
    fields = {**config, **nested} if isinstance(nested, dict) else dict(config)
    hidden_size = _required(fields, _HIDDEN)
    heads = _required(fields, _HEADS)
    kv_heads = _optional(fields, _KV_HEADS) or heads
    head_size = _optional(fields, ("head_dim",)) or hidden_size // heads
    return ModelFacts(
        architecture=_architecture(fields),
        layer_count=_required(fields, _LAYERS),
        hidden_size=hidden_size,
        vocabulary_size=_required(fields, _VOCABULARY),
        context_tokens=_required(fields, _CONTEXT),
        kv_size=kv_heads * head_size,
    )


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
