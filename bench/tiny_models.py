"""Tiny random models of every causal language model that transformers knows.

One rule for every configuration, and a table of what single families need on top.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

LAYERS = 4
WORDS = 96
WINDOW = 8
"""Tokens of every sliding window and chunk: shorter than the Sessions that are run."""

SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), WORDS),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "embedding_size"), 32),
    **dict.fromkeys(
        (
            "intermediate_size",
            "ffn_dim",
            "n_inner",
            "ffn_hidden_size",
            "decoder_ffn_dim",
            "encoder_ffn_dim",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "intermediate_size_mlp",
            "expert_intermediate_size",
        ),
        48,
    ),
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "n_layer",
            "num_layers",
            "n_layers",
            "decoder_layers",
            "encoder_layers",
        ),
        LAYERS,
    ),
    **dict.fromkeys(
        (
            "num_attention_heads",
            "n_head",
            "num_heads",
            "n_heads",
            "decoder_attention_heads",
            "encoder_attention_heads",
        ),
        4,
    ),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim",), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"), 128
    ),
    **dict.fromkeys(("sliding_window", "attention_window", "attention_chunk_size"), WINDOW),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("index_n_heads",), 2),
    "index_head_dim": 16,
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim"), 8),
    "v_head_dim": 12,
    "qk_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0),
    **dict.fromkeys(("dropout", "attention_dropout"), 0.0),
}

_MLA = {"num_key_value_heads": 4}
_DECODER = {"is_decoder": True}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
_HEAD = {"head_dim": 8}
_LINEAR_AND_MLA = {
    **_MLA,
    "num_experts_per_token": 2,
    "num_expert_group": 2,
    "topk_group": 1,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
}

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(
        (
            "axk1",
            "axk2",
            "bailing_hybrid",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "dots3_note",
            "dots3_note_text",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "kimi_linear",
            "minicpm3",
            "sarvam_mla",
            "youtu",
        ),
        _MLA,
    ),
    **dict.fromkeys(
        (
            "bert",
            "bert-generation",
            "big_bird",
            "camembert",
            "data2vec-text",
            "electra",
            "ernie",
            "megatron-bert",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roc_bert",
            "roformer",
            "xlm-roberta",
            "xlm-roberta-xl",
            "xmod",
            "reformer",
            "prophetnet",
        ),
        _DECODER,
    ),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral"), _HEAD),
    "bamba": {**_MAMBA, "attn_layer_indices": [1, 3]},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["mamba", "attention", "mamba", "attention"]},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "longcat_flash": {
        **_MLA,
        "expert_ffn_hidden_size": 48,
        "zero_expert_num": 2,
        "moe_topk": 2,
        "n_routed_experts": 4,
        "ffn_hidden_size": 48,
    },
    "moshi": {"num_codebooks": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "chunk_size": 8, "n_groups": 2},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "chunk_size": 8},
    "gpt_neo": {
        "attention_types": [[["global", "local"], 2]],
        "window_size": WINDOW,
        "num_layers": LAYERS,
    },
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
    "dots1": {
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "num_key_value_heads": 2,
    },
    "deepseek_v2": {**_MLA, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1},
    "dots3_note": {"text_config": _MLA, **_MLA},
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "nemotron": {**_HEAD, "num_key_value_heads": 2},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "mamba_headdim": 8,
        "n_mamba_heads": 8,
        "mamba_d_state": 8,
        "chunk_size": 8,
    },
    "bailing_hybrid": _LINEAR_AND_MLA,
    "kimi_linear": _LINEAR_AND_MLA,
    "qwen4_exp_text": {
        **_HEAD,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "inkling2_text": {"unpadded_vocab_size": WORDS},
    "inkling2_loop_text": {"unpadded_vocab_size": WORDS},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
    "zaya": {"num_experts_per_tok": 1},
    "xmod": {**_DECODER, "languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 4},
    # What does not matter here, and takes long to make.
    "phi4_multimodal": {
        "audio_config": {
            "num_blocks": 2,
            "ext_pw_out_channel": 48,
            "depthwise_separable_out_channel": 48,
            "nemo_conv_channels": 48,
        }
    },
    "xlm": {"emb_dim": 32},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
}

_SHORT = 16
"""Tokens that those with another rope were "trained" on: fewer than the Sessions that are run."""


def _rope(rope_type: str, **named: Any) -> Mapping[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 10000.0, **named}}


_STRETCHED = {"factor": 4.0, "original_max_position_embeddings": _SHORT}

ROPES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama (dynamic)": (
        "llama",
        {**_rope("dynamic", factor=4.0), "max_position_embeddings": _SHORT},
    ),
    "llama (linear)": ("llama", _rope("linear", factor=4.0)),
    "llama (llama3)": (
        "llama",
        _rope("llama3", **_STRETCHED, low_freq_factor=1.0, high_freq_factor=4.0),
    ),
    "llama (yarn)": ("llama", _rope("yarn", **_STRETCHED)),
    "phi3 (longrope)": (
        "phi3",
        {
            **_rope(
                "longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[2.0, 3.0, 4.0, 5.0]
            ),
            "original_max_position_embeddings": _SHORT,
        },
    ),
}
"""Model types with another rope than their configurations' default, by name: "type (rope)"."""


def tiny_config(name: str) -> PretrainedConfig:
    """Make a configuration of four Layers for a model type or a name of ROPES.

    Raises whatever the family's own checks raise.
    """
    model_type, rope = ROPES.get(name, (name, {}))
    kind = CONFIG_MAPPING[model_type]
    known = kind().to_dict()
    own = FAMILIES.get(model_type, {})
    return kind(**{**_sized(known, own), **rope})


def _sized(known: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {k: v for k, v in SIZES.items() if known.get(k) is not None}
    for name, nested in known.items():
        if name.endswith("_config") and isinstance(nested, dict) and name != "quantization_config":
            sizes[name] = _sized(nested, own.get(name, {}))
            sizes[name].update(model_type=nested["model_type"]) if "model_type" in nested else None
    if isinstance(known.get("layer_types"), list) and "layer_types" not in own:
        kinds = list(dict.fromkeys(known["layer_types"]))
        sizes["layer_types"] = [kinds[layer % len(kinds)] for layer in range(LAYERS)]
    return {**sizes, **{k: v for k, v in own.items() if not k.endswith("_config")}}


@torch.no_grad()
def random_model(config: PretrainedConfig) -> PreTrainedModel:
    """Make a whole model whose every number matters: no bias is zero, no norm is one."""
    torch.manual_seed(6)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.eval()
    for parameter in {id(p): p for p in model.parameters()}.values():
        if parameter.dim() > 1:
            parameter.normal_(std=1.4 * parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    kept = set(model.state_dict())
    for name, buffer in model.named_buffers():
        if name in kept and buffer.is_floating_point() and len(buffer.unique()) == 1:
            buffer.add_(torch.randn_like(buffer) * 0.1)
    return model
