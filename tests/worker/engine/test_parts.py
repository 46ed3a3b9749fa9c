from pathlib import Path

import pytest
import torch
from transformers import MixtralConfig

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.packed import UnpackableWeightError
from meshnet_worker.engine.parts import Parts
from meshnet_worker.engine.skeleton import Skeleton
from tests.worker.conftest import ModelFolders
from tests.worker.models import LAYERS


def parts_of(folder: Path) -> Parts:
    return Parts(Skeleton(str(folder), torch.float32))


@pytest.fixture
def llama(model_folders: ModelFolders) -> Parts:
    return parts_of(model_folders("llama"))


@pytest.fixture
def tied(model_folders: ModelFolders) -> Parts:
    return parts_of(model_folders("llama-tied"))


def test_the_first_part_is_the_entry_and_the_last_the_exit(llama: Parts) -> None:
    entry, *layers, end = llama.of(ShardRange(0, LAYERS))
    assert (entry, len(layers)) == (["model.embed_tokens.weight"], LAYERS)
    assert end == ["model.norm.weight", "lm_head.weight"]


def test_a_middle_range_has_layers_only(llama: Parts) -> None:
    found = list(llama.of(ShardRange(1, 3)))
    assert [name for part in found for name in part] == llama.layers(ShardRange(1, 3))
    assert all(".layers.1." in name for name in found[0])


def test_tied_weights_know_each_other(llama: Parts, tied: Parts) -> None:
    names = ("lm_head.weight", "model.embed_tokens.weight")
    assert (tied.tied_to(names[0]), tied.aliases(names[1])) == (names[1], [names[0]])
    assert (llama.tied_to(names[0]), llama.aliases(names[1])) == (names[0], [])


def test_siblings_share_an_allocation_and_all_else_another(llama: Parts) -> None:
    groups = llama.together(llama.layers(ShardRange(0, 1)))
    maps = [{name.rsplit(".", 2)[1] for name in group} for group in groups]
    assert {"q_proj", "k_proj", "v_proj"} in maps
    assert {"gate_proj", "up_proj"} in maps
    assert maps[-1] == {"input_layernorm", "post_attention_layernorm"}


def test_the_matrices_are_the_linear_maps_of_the_layers(model_folders: ModelFolders) -> None:
    for model, per_layer in (("llama", 7), ("gpt2", 4)):
        matrices = parts_of(model_folders(model)).matrices()
        assert len(matrices) == per_layer * LAYERS
        assert not any("norm" in name or "embed" in name or "head" in name for name in matrices)


def test_models_with_fused_experts_have_too_few_matrices(tmp_path: Path) -> None:
    MixtralConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    ).save_pretrained(tmp_path)
    with pytest.raises(UnpackableWeightError, match=r"Only \d+% .* fused experts"):
        parts_of(tmp_path).matrices()
