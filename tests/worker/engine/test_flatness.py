from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BloomConfig,
    GPTNeoXJapaneseConfig,
    Lfm2Config,
    Llama4TextConfig,
    MistralConfig,
    PretrainedConfig,
)

from bench.tiny_models import tiny_config
from meshnet_worker.engine.flatness import LooksAheadError
from meshnet_worker.engine.skeleton import Skeleton

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}

NOT_FLAT: Mapping[str, PretrainedConfig] = {
    "takes no positions": BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
    "recurrent state": Lfm2Config(
        **SIZES, num_key_value_heads=2, layer_types=["conv", "full_attention"]
    ),
    "rule of its mask": Llama4TextConfig(
        **SIZES,
        num_key_value_heads=2,
        intermediate_size=64,
        intermediate_size_mlp=64,
        num_local_experts=2,
        attention_chunk_size=8,
        head_dim=8,
    ),
    "depends on the others": tiny_config("phi3 (longrope)"),
    "interface once": GPTNeoXJapaneseConfig(**SIZES),
}


def skeleton(config: PretrainedConfig, folder: Path) -> Skeleton:
    config.save_pretrained(folder)
    return Skeleton(str(folder), torch.float32)


@pytest.mark.parametrize("why", NOT_FLAT)
def test_what_the_attention_function_would_ignore_keeps_sessions_apart(
    why: str, tmp_path: Path
) -> None:
    assert why in skeleton(NOT_FLAT[why], tmp_path).why_alone


def test_a_window_that_is_given_is_honoured(tmp_path: Path) -> None:
    config = MistralConfig(**SIZES, num_key_value_heads=2, intermediate_size=64, sliding_window=8)
    bare = skeleton(config, tmp_path)
    assert not bare.runs_alone
    # Two KV heads of eight numbers, for keys and for values.
    assert bare.kv_values == (32, 32)


def test_a_model_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LooksAheadError):
        skeleton(BertConfig(**SIZES), tmp_path)
