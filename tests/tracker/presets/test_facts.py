from typing import Any

import pytest

from meshnet_common.weights.errors import ConfigError
from meshnet_tracker.presets.facts import model_facts
from tests.tracker.presets.checkpoints import GPT2_CONFIG, LLAMA_CONFIG


def test_a_llama_config_is_read_with_its_grouped_heads() -> None:
    facts = model_facts(LLAMA_CONFIG)
    assert (facts.layer_count, facts.hidden_size, facts.context_tokens) == (3, 8, 128)
    assert facts.kv_values == 2 * (2 + 2)


def test_a_gpt2_config_is_read_under_its_own_names() -> None:
    facts = model_facts(GPT2_CONFIG)
    assert (facts.architecture, facts.layer_count, facts.kv_values) == ("gpt2", 2, 16)


def test_a_stated_head_size_wins_over_the_quotient() -> None:
    assert model_facts({**LLAMA_CONFIG, "head_dim": 16}).kv_values == 64


def test_latent_attention_stores_keys_and_values_of_every_head() -> None:
    sizes = {"kv_lora_rank": 4, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
    assert model_facts({**LLAMA_CONFIG, **sizes}).kv_values == 4 * (8 + 4 + 6)


def test_the_widest_kind_of_layer_counts() -> None:
    wide = {"head_dim": 2, "global_head_dim": 4, "num_global_key_value_heads": 1}
    assert model_facts({**LLAMA_CONFIG, **wide}).kv_values == 2 * (4 + 4)


def test_a_recurrent_model_has_neither_heads_nor_an_end() -> None:
    facts = model_facts(
        {**LLAMA_CONFIG, "num_attention_heads": None, "max_position_embeddings": None}
    )
    assert (facts.kv_values, facts.context_tokens) == (2 * 8, 2048)


def test_layers_are_counted_where_only_their_kinds_are_listed() -> None:
    kinds = ["linear_attention", "moe", "full_attention"]
    config = {**LLAMA_CONFIG, "num_hidden_layers": None, "layers_block_type": kinds}
    assert model_facts(config).layer_count == 3


def test_values_of_another_size_count_for_every_head() -> None:
    assert model_facts({**LLAMA_CONFIG, "v_head_dim": 3}).kv_values == 4 * (2 + 3)


def test_the_text_part_of_a_wider_model_counts() -> None:
    nested = {"architectures": ["ManyThings"], "text_config": LLAMA_CONFIG}
    assert model_facts(nested).layer_count == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_hidden_layers": None}, "n_layer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers"),
        ({"vocab_size": None}, "vocab_size"),
        ({"architectures": None}, "architectures"),
        ({"quantization_config": {}}, "quantized already"),
    ],
)
def test_what_is_missing_or_absurd_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        model_facts({**LLAMA_CONFIG, **change})
