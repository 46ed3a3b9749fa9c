import hashlib
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from meshnet_tracker.presets import manifests
from meshnet_tracker.presets.errors import NoCheckpointError
from meshnet_tracker.presets.manifests import folder_manifest
from tests.weights import checkpoint, manifest_of, tensor_sizes


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("files", [1, 3])
async def test_each_tensor_and_text_of_a_folder_has_its_digest(files: int, tmp_path: Path) -> None:
    content = {**checkpoint(files=files), "tokenizer.json": b"{}"}
    manifest = await folder_manifest(written(tmp_path, content))
    by_name = {file.name: file for file in manifest.files}
    assert by_name == {file.name: file for file in manifest_of(content).files}
    assert sum(len(file.tensors) for file in manifest.files) == len(tensor_sizes())
    tokenizer = manifest.file("tokenizer.json")
    assert tokenizer is not None
    assert tokenizer.sha256 == hashlib.sha256(b"{}").hexdigest()


async def test_a_big_folder_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "LINE_SECONDS", 0.0)
    folder = written(tmp_path, checkpoint())
    with capture_logs() as logs:
        await folder_manifest(folder)
    assert logs[-1]["bytes_done"] == logs[-1]["bytes_total"] == sum(tensor_sizes().values())


async def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpointError):
        await folder_manifest(tmp_path)
