"""Checkpoints whose tensors are stored otherwise than the model's code holds them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MixtralConfig, PreTrainedModel

from meshnet_worker.engine.checkpoint import Checkpoint, CheckpointError
from meshnet_worker.engine.conversions import ConvertedCheckpoint

EXPERTS = "model.layers.1.mlp.experts.gate_up_proj"


@pytest.fixture
def model() -> PreTrainedModel:
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=3,
    )
    made: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return made


@pytest.fixture
def folder(model: PreTrainedModel, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path)
    return tmp_path


def converted(folder: Path, model: PreTrainedModel) -> ConvertedCheckpoint:
    return ConvertedCheckpoint(Checkpoint(str(folder), model.base_model_prefix), model)


def test_every_expert_is_stored_apart_and_read_as_one(model: PreTrainedModel, folder: Path) -> None:
    stored = Checkpoint(str(folder), model.base_model_prefix)
    assert EXPERTS not in stored.names
    assert torch.equal(converted(folder, model).read(EXPERTS), model.state_dict()[EXPERTS])


def test_every_weight_of_the_model_is_found(model: PreTrainedModel, folder: Path) -> None:
    checkpoint = converted(folder, model)
    for name, tensor in model.state_dict().items():
        assert checkpoint.holds(name)
        assert torch.equal(checkpoint.read(name), tensor)


def test_a_missing_expert_is_an_error_that_names_the_weight(
    model: PreTrainedModel, folder: Path
) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.block_sparse_moe.experts.2.w1.weight"]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=EXPERTS):
        converted(folder, model).read(EXPERTS)


def test_a_weight_that_is_not_there_is_not_held(model: PreTrainedModel, folder: Path) -> None:
    checkpoint = converted(folder, model)
    assert not checkpoint.holds("model.other")
    with pytest.raises(CheckpointError):
        checkpoint.read("model.other")
