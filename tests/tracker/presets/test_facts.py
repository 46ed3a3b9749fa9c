from typing import Any

import pytest

from meshnet_common.weights.errors import ConfigError
from meshnet_tracker.presets.facts import model_facts
from tests.tracker.presets.checkpoints import GPT2_CONFIG, LLAMA_CONFIG


def test_a_llama_config_is_read_with_its_grouped_heads() -> None:
    facts = model_facts(LLAMA_CONFIG)
    assert (facts.layer_count, facts.hidden_size, facts.context_tokens) == (3, 8, 128)
    assert facts.kv_size == 2 * 2


def test_a_gpt2_config_is_read_under_its_own_names() -> None:
    facts = model_facts(GPT2_CONFIG)
    assert (facts.architecture, facts.layer_count, facts.kv_size) == ("gpt2", 2, 8)


def test_a_stated_head_size_wins_over_the_quotient() -> None:
    assert model_facts({**LLAMA_CONFIG, "head_dim": 16}).kv_size == 32


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
        ({"max_position_embeddings": None}, "n_positions"),
        ({"architectures": None}, "architectures"),
        ({"quantization_config": {}}, "quantized already"),
    ],
)
def test_what_is_missing_or_absurd_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        model_facts({**LLAMA_CONFIG, **change})
