from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.checkpoint import CheckpointError
from meshnet_worker.engine.gguf_checkpoint import GgufCheckpoint
from meshnet_worker.engine.shard import Shard, ShardSource
from tests.gguf_files import tiny_llama_gguf, write_gguf
from tests.worker.engine.gguf_models import randomly, save_gguf
from tests.worker.engine.splitting import CPU, SplitModel
from tests.worker.models import LAYERS, prompt_of

Q8_0 = GGMLQuantizationType.Q8_0
Q4_1 = GGMLQuantizationType.Q4_1
Q4_K = GGMLQuantizationType.Q4_K
SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
WIDE: dict[str, Any] = {**SMALL, "hidden_size": 256, "intermediate_size": 512}
MODELS = [
    pytest.param(LlamaConfig(**SMALL, tie_word_embeddings=False), Q8_0, id="llama-q8_0"),
    pytest.param(LlamaConfig(**SMALL, tie_word_embeddings=True), Q4_1, id="llama-tied-q4_1"),
    pytest.param(LlamaConfig(**SMALL, attention_bias=True), Q8_0, id="llama-biased-q8_0"),
    pytest.param(LlamaConfig(**WIDE, tie_word_embeddings=True), Q4_K, id="llama-q4_k"),
    pytest.param(Qwen2Config(**SMALL), Q8_0, id="qwen2-q8_0"),
    pytest.param(Qwen3Config(**SMALL, head_dim=32), Q4_1, id="qwen3-q4_1"),
]


def make(config: PreTrainedConfig, folder: Path, kind: GGMLQuantizationType) -> PreTrainedModel:
    """Save a configuration and a GGUF file of random weights; returns the same weights unpacked."""
    torch.manual_seed(6)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    config.save_pretrained(folder)
    if kind == Q4_K:
        save_gguf(model, folder / "model.gguf", kind, randomly)
    else:
        save_gguf(model, folder / "model.gguf", kind)
    return model


def shard_of(folder: Path, shard_range: ShardRange) -> Shard:
    gguf = str(folder / "model.gguf")
    shard = Shard(ShardSource(str(folder), torch.float32, CPU, "q8_0", gguf))
    list(shard.load(shard_range))
    return shard


@pytest.mark.parametrize(("config", "kind"), MODELS)
@torch.inference_mode()
def test_packed_weights_compute_what_the_unpacked_ones_do(
    config: PreTrainedConfig, kind: GGMLQuantizationType, tmp_path: Path
) -> None:
    model = make(config, tmp_path, kind)
    ranges = (ShardRange(0, 2), ShardRange(2, LAYERS))
    split = SplitModel([(shard_of(tmp_path, r), r) for r in ranges])
    theirs = model(torch.tensor([prompt_of(40)])).logits[0]
    torch.testing.assert_close(split.session().prefill(prompt_of(40)), theirs, rtol=1e-4, atol=1e-3)


def test_packed_sizes_are_the_files_own_and_all_else_is_held_in_the_compute_dtype(
    tmp_path: Path,
) -> None:
    make(LlamaConfig(**SMALL, tie_word_embeddings=True), tmp_path, Q8_0)
    layer = ShardRange(1, 2)
    values = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128
    planned = Shard(ShardSource(str(tmp_path), torch.bfloat16, CPU, "", f"{tmp_path}/model.gguf"))
    assert planned.layer_bytes_of(layer) == values // 32 * 34 + 2 * 64 * 2
    assert sum(planned.load(layer)) == planned.layer_bytes_of(layer)


def test_a_tied_head_is_held_once_and_outlives_the_embedding(tmp_path: Path) -> None:
    make(LlamaConfig(**SMALL, tie_word_embeddings=True), tmp_path, Q8_0)
    whole = ShardRange(0, LAYERS)
    shard = shard_of(tmp_path, whole)
    prompt = prompt_of(9)
    before = SplitModel([(shard, whole)]).session().prefill(prompt)
    size = shard.bytes_of(whole)
    shard.drop(ShardRange(0, 2))
    assert shard.bytes_of(ShardRange(2, LAYERS)) == size - shard.layer_bytes_of(ShardRange(0, 2))
    hops = [(shard_of(tmp_path, ShardRange(0, 2)), ShardRange(0, 2)), (shard, ShardRange(2, 4))]
    assert torch.equal(SplitModel(hops).session().prefill(prompt), before)
    shard.drop(whole)
    assert not any(shard._placed.holds(name) for name in shard._names(whole))


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"", "empty"), (b"PK\x03\x04", "not begin with GGUF")],
)
def test_a_file_that_cannot_be_used_says_why(
    content: bytes | None, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.gguf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CheckpointError, match=reason):
        GgufCheckpoint(str(file), LlamaConfig(**SMALL), torch.float32, CPU)


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tiny_llama_gguf(tmp_path / "model.gguf", "Q8_0")
    checkpoint = GgufCheckpoint(str(file), LlamaConfig(**SMALL), torch.float32, CPU)
    assert not checkpoint.holds("lm_head.weight")
    with pytest.raises(CheckpointError, match=r"no tensor model\.layers\.0"):
        checkpoint.read("model.layers.0.mlp.up_proj.weight")
    with pytest.raises(CheckpointError, match="no tensor nonsense"):
        checkpoint.packed("nonsense")


@pytest.mark.parametrize(
    ("architecture", "reason"), [("gemma2", "cannot be kept packed"), ("abacus", "not known here")]
)
def test_architectures_whose_values_change_are_refused(
    architecture: str, reason: str, tmp_path: Path
) -> None:
    norm = (np.ones(32, np.float32), GGMLQuantizationType.F32)
    file = write_gguf(tmp_path / "model.gguf", architecture, 1, {"output_norm.weight": norm})
    with pytest.raises(CheckpointError, match=reason):
        GgufCheckpoint(str(file), LlamaConfig(**SMALL), torch.float32, CPU)
