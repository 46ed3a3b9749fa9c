from collections.abc import Mapping
from pathlib import Path

import pytest

from meshnet_common.weights.manifest import Manifest
from meshnet_worker.weights import hashing, local_model
from meshnet_worker.weights.errors import DigestMismatchError, WeightsNotFoundError
from meshnet_worker.weights.hashing import OnHashed, sha256_in_steps
from meshnet_worker.weights.local_model import LocalModel
from tests.weights import LAYER_BYTES, LAYERS, checkpoint, layer_names, manifest_of, tensors_of
from tests.worker.weights.opening import fetch

FILES = checkpoint(files=3)
NAMES = [name for name in FILES if name.endswith(".safetensors")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def model(folder: Path, manifest: Manifest) -> LocalModel:
    return LocalModel(folder, manifest, LAYERS)


def damage(folder: Path, tensor: str) -> Path:
    wanted = tensors_of(FILES)[tensor]
    for name in NAMES:
        content = bytearray((folder / name).read_bytes())
        if (place := content.find(wanted)) >= 0:
            content[place] ^= 1
            (folder / name).write_bytes(content)
            return folder / name
    raise AssertionError(tensor)


async def check_and_fetch(local: LocalModel) -> None:
    await local.check_text()
    await fetch(local, 0, 4)


async def test_the_tensors_of_a_range_are_checked_and_no_others(folder: Path) -> None:
    damage(folder, layer_names(7)[0])
    local = model(folder, manifest_of(FILES))
    heard = await fetch(local, 4, 7)
    assert heard[-1] == (3 * LAYER_BYTES, 3 * LAYER_BYTES)
    with pytest.raises(DigestMismatchError, match=layer_names(7)[0]):
        await fetch(local, 7, 8)


async def test_a_damaged_file_stays_its_owners(folder: Path) -> None:
    file = damage(folder, layer_names(7)[0])
    before = file.read_bytes()
    with pytest.raises(DigestMismatchError):
        await fetch(model(folder, manifest_of(FILES)), 7, 8)
    assert file.read_bytes() == before


async def test_a_byte_is_checked_once_while_its_file_stays_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []

    async def counting(file: Path, start: int, end: int, on_hashed: OnHashed) -> str:
        hashed.append(end)
        return await sha256_in_steps(file, start, end, on_hashed)

    monkeypatch.setattr(local_model, "sha256_in_steps", counting)
    local = model(folder, manifest_of(FILES))
    await fetch(local, 4, 5)
    await fetch(local, 4, 6)
    assert len(hashed) == 4
    damage(folder, layer_names(4)[0])
    with pytest.raises(DigestMismatchError):
        await fetch(local, 4, 5)


async def test_where_only_files_have_digests_those_of_the_range_are_checked(folder: Path) -> None:
    local = model(folder, manifest_of(FILES, per_tensor=False))
    heard = await fetch(local, 4, 5)
    assert 0 < heard[-1][1] < sum(len(FILES[name]) for name in NAMES)
    file = damage(folder, layer_names(4)[0])
    with pytest.raises(DigestMismatchError, match=file.name):
        await fetch(local, 4, 5)


async def test_without_a_manifest_nothing_is_read(tmp_path: Path) -> None:
    assert await fetch(model(tmp_path, Manifest(files=())), 0, 4) == []


@pytest.mark.parametrize("content", [{"config.json": b"{}"}, {NAMES[0]: FILES[NAMES[0]][:-1]}])
async def test_another_text_or_size_than_was_registered_is_refused(
    content: Mapping[str, bytes], folder: Path
) -> None:
    for name, changed in content.items():
        (folder / name).write_bytes(changed)
    with pytest.raises(DigestMismatchError):
        await check_and_fetch(model(folder, manifest_of(FILES)))


@pytest.mark.parametrize("name", ["config.json", NAMES[1]])
async def test_a_missing_file_is_named(name: str, folder: Path) -> None:
    (folder / name).unlink()
    with pytest.raises(WeightsNotFoundError, match=f"{name} is missing; copy the whole model"):
        await check_and_fetch(model(folder, manifest_of(FILES)))


async def test_a_file_that_vanishes_while_it_is_checked_is_no_fault_of_ours(folder: Path) -> None:
    local = model(folder, manifest_of(FILES, per_tensor=False))
    heard = await fetch(local, 4, 5)
    # Its header is known by now.
    for name in NAMES:
        (folder / name).unlink()
    with pytest.raises(WeightsNotFoundError, match="is missing"):
        await fetch(local, 4, 5)
    assert heard


async def test_progress_comes_with_every_step_of_a_large_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "STEP_BYTES", LAYER_BYTES // 4)
    heard = await fetch(model(folder, manifest_of(FILES)), 4, 5)
    assert len(heard) > 4
    assert heard[-1] == (LAYER_BYTES, LAYER_BYTES)
