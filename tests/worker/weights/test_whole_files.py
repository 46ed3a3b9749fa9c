import hashlib
import os
from pathlib import Path

import pytest

from meshnet_worker.weights import whole_files
from meshnet_worker.weights.errors import DigestMismatchError, WeightsNotFoundError
from meshnet_worker.weights.whole_files import WholeFiles

CONTENT = b"GGUF and so on"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def ignore_progress(_bytes_done: int, _bytes_total: int) -> None:
    """Hear how far a check is, and do nothing about it."""


def change(file: Path) -> None:
    file.write_bytes(CONTENT[::-1])
    os.utime(file, ns=(1, 1))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "model.gguf"
    file.write_bytes(CONTENT)
    return file


async def test_a_file_is_read_once_as_long_as_nobody_writes_to_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = WholeFiles()
    heard: list[tuple[int, int]] = []
    await files.check(str(file), DIGEST, lambda done, total: heard.append((done, total)))
    assert heard == [(len(CONTENT), len(CONTENT))]
    monkeypatch.delattr(whole_files, "sha256_in_steps")
    await files.check(str(file), DIGEST, ignore_progress)


async def test_a_file_that_was_changed_is_refused(file: Path) -> None:
    files = WholeFiles()
    await files.check(str(file), DIGEST, ignore_progress)
    change(file)
    with pytest.raises(DigestMismatchError, match="has the SHA-256"):
        await files.check(str(file), DIGEST, ignore_progress)


async def test_a_file_that_is_not_here_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(WeightsNotFoundError, match="copy it there"):
        await WholeFiles().check(str(tmp_path / "model.gguf"), DIGEST, ignore_progress)
