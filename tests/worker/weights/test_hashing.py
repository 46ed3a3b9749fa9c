import asyncio
import hashlib
from pathlib import Path

import pytest

from meshnet_worker.weights import hashing
from meshnet_worker.weights.hashing import ignore_hashed, sha256_in_steps

CONTENT = bytes(range(256)) * 10


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "STEP_BYTES", 100)
    monkeypatch.setattr(hashing, "CHUNK_BYTES", 30)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "f").write_bytes(CONTENT)
    return tmp_path / "f"


@pytest.mark.parametrize(("start", "end"), [(0, 2560), (0, 0), (7, 8), (7, 307), (2500, 9999)])
async def test_steps_together_are_the_range(file: Path, start: int, end: int) -> None:
    steps: list[int] = []
    found = await sha256_in_steps(file, start, end, steps.append)
    assert found == hashlib.sha256(CONTENT[start:end]).hexdigest()
    assert (sum(steps), max(steps, default=0) <= 100) == (end - start, True)


async def test_who_is_told_to_stop_waits_for_one_step(file: Path) -> None:
    steps: list[int] = []

    def stop(size_bytes: int) -> None:
        steps.append(size_bytes)
        hashing_task.cancel()

    async with asyncio.TaskGroup() as tasks:
        hashing_task = tasks.create_task(sha256_in_steps(file, 0, len(CONTENT), stop))
    assert (hashing_task.cancelled(), steps) == (True, [100])


async def test_a_file_that_is_gone_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await sha256_in_steps(tmp_path / "f", 0, 1, ignore_hashed)
