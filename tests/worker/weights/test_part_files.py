import errno
import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshnet_common.weights.headers import PlacedTensor, TensorEntry
from meshnet_worker.weights import part_files
from meshnet_worker.weights.errors import DigestMismatchError, DiskFullError, WeightsFolderError
from meshnet_worker.weights.layout import Part, Piece
from meshnet_worker.weights.part_files import PartWriter, disk_errors, evict, hold, partial_name

DATA = bytes(range(256)) * 4
SYNC_BYTES = 100


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_files, "SYNC_BYTES", SYNC_BYTES)


def part() -> Part:
    half = len(DATA) // 2
    tensors = (
        PlacedTensor(TensorEntry("a", "U8", (half,)), 0, half),
        PlacedTensor(TensorEntry("b", "U8", (half,)), half, 2 * half),
    )
    return Part.of("layer-00001", tuple(Piece("model.safetensors", t) for t in tensors))


DIGESTS = {
    "a": hashlib.sha256(DATA[: len(DATA) // 2]).hexdigest(),
    "b": hashlib.sha256(DATA[len(DATA) // 2 :]).hexdigest(),
}


def names_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def claimed(folder: Path) -> PartWriter:
    writer = PartWriter.claim(folder, part())
    assert writer is not None
    return writer


def written(folder: Path, data: bytes = DATA) -> PartWriter:
    writer = claimed(folder)
    writer.append(memoryview(data))
    return writer


async def test_a_part_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    writer = written(tmp_path, DATA[:-1])
    assert writer.held_bytes == part().size_bytes - 1
    final = tmp_path / "layer-00001.safetensors"
    assert not final.exists()
    writer.append(memoryview(DATA[-1:]))
    assert writer.is_complete
    await writer.verify(DIGESTS)
    os.close(writer.finish())
    assert final.read_bytes() == part().header + DATA
    assert names_in(tmp_path) == [final.name]


@pytest.mark.parametrize(
    ("size", "kept"), [(0, 0), (1, 0), (100, 0), (101, 100), (250, 200), (300, 200), (1024, 1000)]
)
def test_only_bytes_that_were_durable_are_trusted_after_a_crash(
    size: int, kept: int, tmp_path: Path
) -> None:
    header = part().header
    (tmp_path / partial_name(part())).write_bytes(header + DATA[:size])
    writer = claimed(tmp_path)
    assert writer.held_bytes - len(header) == kept
    writer.append(memoryview(DATA[kept:]))
    os.close(writer.finish())


def test_a_partial_of_something_else_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / partial_name(part())).write_bytes(bytes(900))
    assert claimed(tmp_path).held_bytes == len(part().header)


def test_a_writer_has_its_part_for_itself(tmp_path: Path) -> None:
    writer = written(tmp_path, DATA[:500])
    assert PartWriter.claim(tmp_path, part()) is None
    writer.close()
    again = claimed(tmp_path)
    assert again.held_bytes == len(part().header) + 400


def test_a_killed_worker_leaves_no_lock(tmp_path: Path) -> None:
    partial = tmp_path / partial_name(part())
    code = (
        f"import fcntl; f = open({str(partial)!r}, 'w'); fcntl.flock(f, {fcntl.LOCK_EX}); print(1)"
    )
    ended = subprocess.run((sys.executable, "-c", code), check=True, capture_output=True)
    assert ended.stdout == b"1\n"
    claimed(tmp_path).close()


def test_what_another_has_finished_meanwhile_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "layer-00001.safetensors").write_bytes(b"x")
    assert PartWriter.claim(tmp_path, part()) is None
    assert not (tmp_path / partial_name(part())).exists()


async def test_nothing_is_left_of_wrong_bytes(tmp_path: Path) -> None:
    writer = written(tmp_path)
    with pytest.raises(DigestMismatchError, match=r"b of model\.safetensors has the SHA-256"):
        await writer.verify({**DIGESTS, "b": "0" * 64})
    writer.close()
    assert names_in(tmp_path) == []


def test_a_claim_that_brought_nothing_leaves_nothing(tmp_path: Path) -> None:
    claimed(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_held_is_not_evicted_until_it_is_released(tmp_path: Path) -> None:
    file = tmp_path / "layer-00001.safetensors"
    writer = written(tmp_path)
    assert not evict(tmp_path / partial_name(part()))
    descriptor = writer.finish()
    assert not evict(file)
    second = hold(file, part().size_bytes)
    assert second is not None
    os.close(descriptor)
    assert not evict(file)
    os.close(second)
    assert evict(file)
    assert evict(file)
    assert hold(file, part().size_bytes) is None


def test_a_part_of_the_wrong_size_is_no_part(tmp_path: Path) -> None:
    file = tmp_path / "layer-00001.safetensors"
    file.write_bytes(b"short")
    assert hold(file, part().size_bytes) is None
    assert not file.exists()


def test_a_full_disk_loses_nothing_that_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = written(tmp_path, DATA[:500])

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(DiskFullError, match=r"No space left on device\. Free some space"):
            writer.append(memoryview(DATA[500:]))
    writer.close()
    assert claimed(tmp_path).held_bytes == len(part().header) + 400


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WeightsFolderError, match="Choose another with --weights-dir"):
        PartWriter.claim(tmp_path / "file", part())
    with pytest.raises(WeightsFolderError), disk_errors(tmp_path):
        (tmp_path / "nowhere").stat()


@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_full_disk_at_the_beginning_of_a_part_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(DiskFullError, match="Free some space"):
            PartWriter.claim(tmp_path, part())
    os.close(written(tmp_path).finish())


def test_a_part_that_cannot_be_marked_used_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.close(written(tmp_path).finish())
    file = tmp_path / "layer-00001.safetensors"

    def refused(_file: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", refused)
        with pytest.raises(PermissionError):
            hold(file, part().size_bytes)
    assert evict(file)
