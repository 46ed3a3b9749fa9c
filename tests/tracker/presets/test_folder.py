import json
from pathlib import Path

import pytest

from meshnet_common.weights.errors import CheckpointError, ConfigError, HeaderError
from meshnet_tracker.presets.errors import NoCheckpointError
from meshnet_tracker.presets.folder import read_folder
from tests.tracker.presets.checkpoints import (
    LLAMA_CONFIG,
    llama_tensors,
    safetensors_bytes,
    write_checkpoint,
)


def test_a_folder_is_read_without_its_weights(tmp_path: Path) -> None:
    found = read_folder(write_checkpoint(tmp_path / "tiny"))
    assert found.config == LLAMA_CONFIG
    assert {tensor.name for tensor in found.tensors} == set(llama_tensors())
    assert found.source == str(tmp_path / "tiny")


def test_an_index_names_the_files_that_count(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "a.safetensors").write_bytes(safetensors_bytes({"x": (2,)}))
    (folder / "b.safetensors").write_bytes(safetensors_bytes({"y": (2,)}))
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert [tensor.name for tensor in read_folder(folder).tensors] == ["x", "y"]


@pytest.mark.parametrize("name", ["missing.safetensors", "../model.safetensors", "/etc/passwd"])
def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "tiny")
    index = json.dumps({"weight_map": {"x": name}})
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"which is not in|no plain name"):
        read_folder(folder)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpointError, match=r"has no config\.json"):
        read_folder(tmp_path)


def test_a_config_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path) / "config.json").write_text("[1, 2")
    with pytest.raises(ConfigError, match="JSON object"):
        read_folder(tmp_path)


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(NoCheckpointError, match=r"no \*\.safetensors"):
        read_folder(tmp_path)


def test_pickled_weights_are_never_opened(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(NoCheckpointError, match=r"pickle.*Convert them to safetensors"):
        read_folder(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(HeaderError, match=r"model\.safetensors: Its header claims"):
        read_folder(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpointError):
        read_folder(tmp_path / "nothing")
