import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from meshnet_worker.engine.checkpoint import INDEX_NAME, Checkpoint, CheckpointError

TENSORS = {
    "model.embed.weight": torch.arange(6.0).reshape(2, 3),
    "model.layers.0.weight": torch.ones(4, dtype=torch.bfloat16),
    "lm_head.weight": torch.zeros(2),
}


def whole(folder: Path) -> Path:
    save_file(TENSORS, folder / "model.safetensors")
    return folder


def in_two_files(folder: Path) -> Path:
    names = list(TENSORS)
    files = {"a.safetensors": names[:1], "b.safetensors": names[1:]}
    for file, held in files.items():
        save_file({name: TENSORS[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in files.items() for name in held}
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("layout", [whole, in_two_files])
def test_a_tensor_is_read_in_its_own_dtype(layout: object, tmp_path: Path) -> None:
    assert callable(layout)
    checkpoint = Checkpoint(str(layout(tmp_path)), "model")
    for name, tensor in TENSORS.items():
        torch.testing.assert_close(checkpoint.read(name), tensor, rtol=0, atol=0)


def test_files_without_an_index_are_joined(tmp_path: Path) -> None:
    (in_two_files(tmp_path) / INDEX_NAME).unlink()
    checkpoint = Checkpoint(str(tmp_path), "model")
    assert all(checkpoint.stored_name(name) == name for name in TENSORS)


def test_a_prefix_that_the_checkpoint_leaves_out_is_found(tmp_path: Path) -> None:
    save_file({"embed.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(str(tmp_path), "model")
    assert checkpoint.stored_name("model.embed.weight") == "embed.weight"
    assert checkpoint.read("model.embed.weight").tolist() == [1.0, 1.0]


def test_a_prefix_that_only_the_checkpoint_has_is_found(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(whole(tmp_path)), "model")
    assert checkpoint.stored_name("embed.weight") == "model.embed.weight"


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(whole(tmp_path)), "model")
    assert checkpoint.stored_name("model.norm.weight") is None
    with pytest.raises(CheckpointError, match=r"no tensor model\.norm\.weight"):
        checkpoint.read("model.norm.weight")


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no safetensors file"):
        Checkpoint(str(tmp_path), "model")


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="no safetensors file"):
        Checkpoint(str(tmp_path), "model")


@pytest.mark.parametrize("left", [0, 4, 8, 40, -1])
def test_a_truncated_file_is_refused(left: int, tmp_path: Path) -> None:
    file = whole(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Checkpoint(str(tmp_path), "model")


def test_a_file_that_the_index_names_in_vain_is_refused_when_it_is_read(tmp_path: Path) -> None:
    (in_two_files(tmp_path) / "b.safetensors").unlink()
    checkpoint = Checkpoint(str(tmp_path), "model")
    checkpoint.read("model.embed.weight")
    with pytest.raises(CheckpointError, match=r"b\.safetensors"):
        checkpoint.read("lm_head.weight")


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"weight_map": 3}', "{", '{"weight_map": [1]}'])
def test_an_index_that_is_junk_is_refused(index: str, tmp_path: Path) -> None:
    (in_two_files(tmp_path) / INDEX_NAME).write_text(index)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        Checkpoint(str(tmp_path), "model")


def test_an_index_cannot_name_a_file_outside_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"secret": torch.ones(2)}, tmp_path / "outside.safetensors")
    index = {"weight_map": {"secret": "../outside.safetensors"}}
    (folder / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(CheckpointError):
        Checkpoint(str(folder), "model").read("secret")
