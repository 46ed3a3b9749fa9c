from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, PretrainedConfig, RwkvConfig

from bench.tiny_models import ROPES, tiny_config
from meshnet_worker.engine.probe import UnsupportedModelError
from meshnet_worker.engine.skeleton import Skeleton
from tests.worker.conftest import ModelFolders
from tests.worker.models import CONFIGS, LAYERS

UNSUPPORTED: dict[str, PretrainedConfig] = {
    "it looks ahead": BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    ),
    "it hides its state": RwkvConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2),
}


REASONS = {
    "llama (dynamic)": "changes with how long other Sessions have been",
    "xmod": "cannot be watched without weights",
}
"""What the engine says of tiny models that it refuses."""


def skeleton(folder: Path) -> Skeleton:
    return Skeleton(str(folder), torch.float32)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_skeleton_is_the_whole_model_without_a_weight(
    name: str, model_folders: ModelFolders
) -> None:
    bare = skeleton(model_folders(name))
    assert bare.layer_count == LAYERS
    assert {parameter.device.type for parameter in bare.model.parameters()} == {"meta"}


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_computed_and_not_loaded_is_there(name: str, model_folders: ModelFolders) -> None:
    buffers = list(skeleton(model_folders(name)).model.buffers())
    assert all(buffer.device.type == "cpu" for buffer in buffers)


def test_the_entry_and_the_exit_are_found_without_names(model_folders: ModelFolders) -> None:
    bare = skeleton(model_folders("gpt2"))
    names = {id(module): name for name, module in bare.model.named_modules()}
    assert [names[id(module)] for module in bare.entry] == [
        "transformer.wte",
        "transformer.wpe",
    ]
    assert [names[id(module)] for module in bare.exit] == ["transformer.ln_f", "lm_head"]


@pytest.mark.parametrize("why", UNSUPPORTED)
def test_a_model_that_would_compute_something_else_is_refused(why: str, tmp_path: Path) -> None:
    UNSUPPORTED[why].save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError):
        skeleton(tmp_path)


@pytest.mark.parametrize("name", REASONS)
def test_a_refusal_says_what_it_means(name: str, tmp_path: Path) -> None:
    tiny_config(name).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=REASONS[name]):
        skeleton(tmp_path)


@pytest.mark.parametrize("name", sorted(ROPES.keys() - REASONS.keys()))
def test_looking_at_a_model_leaves_its_rope_as_it_was_built(name: str, tmp_path: Path) -> None:
    config = tiny_config(name)
    config.save_pretrained(tmp_path)
    looked_at, built = skeleton(tmp_path).model, AutoModelForCausalLM.from_config(config)
    buffers = dict(built.named_buffers())
    assert buffers
    assert dict(looked_at.named_buffers()).keys() == buffers.keys()
    assert all(torch.equal(buffer, buffers[at]) for at, buffer in looked_at.named_buffers())
    for at in {at.rpartition(".")[0] for at in buffers}:
        kept = vars(looked_at.get_submodule(at))
        assert kept.keys() == vars(built.get_submodule(at)).keys()
