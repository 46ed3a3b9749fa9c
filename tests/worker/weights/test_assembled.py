import hashlib
from pathlib import Path

import pytest

from meshnet_worker.weights.assembled import check_assembled, unmark
from meshnet_worker.weights.errors import DigestMismatchError
from meshnet_worker.weights.layout import Layout
from tests.weights import LAYERS, safetensors, tensor_sizes, tensors_of
from tests.worker.weights.test_layout import source_file

CONTENT = safetensors(tensor_sizes())
DIGEST = hashlib.sha256(CONTENT).hexdigest()
FILE = source_file(CONTENT)
LAYOUT = Layout((FILE,), LAYERS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = tensors_of({"model.safetensors": CONTENT})
    for part in LAYOUT.all_parts:
        data = b"".join(tensors[piece.name] for piece in part.pieces)
        (tmp_path / part.file_name).write_bytes(part.header + data)
    return tmp_path


def names_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if not file.name.endswith(".checked")]


def damage(folder: Path) -> None:
    file = folder / "layer-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")


async def test_parts_together_are_their_source_file(folder: Path) -> None:
    assert await check_assembled(folder, LAYOUT, FILE, DIGEST)
    assert len(names_in(folder)) == len(LAYOUT.all_parts)


async def test_of_a_wrong_file_no_part_is_left(folder: Path) -> None:
    damage(folder)
    with pytest.raises(DigestMismatchError, match=r"model\.safetensors has"):
        await check_assembled(folder, LAYOUT, FILE, DIGEST)
    assert names_in(folder) == []


async def test_what_is_not_all_here_cannot_be_checked(folder: Path) -> None:
    damage(folder)
    (folder / "norms.safetensors").unlink()
    assert not await check_assembled(folder, LAYOUT, FILE, DIGEST)


async def test_a_file_is_checked_once_until_some_of_it_is_fetched_again(folder: Path) -> None:
    await check_assembled(folder, LAYOUT, FILE, DIGEST)
    damage(folder)
    assert await check_assembled(folder, LAYOUT, FILE, DIGEST)
    unmark(folder, ["model.safetensors", "another"])
    with pytest.raises(DigestMismatchError):
        await check_assembled(folder, LAYOUT, FILE, DIGEST)
