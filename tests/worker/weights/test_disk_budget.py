import os
from pathlib import Path

import pytest

from meshnet_worker.weights.description import STATE_FILE
from meshnet_worker.weights.disk_budget import PartStore, Room, Stored
from meshnet_worker.weights.errors import DiskBudgetError, DiskFullError
from meshnet_worker.weights.part_files import hold


def stored(held: int, full: int | None = None) -> Stored:
    return Stored(Path("f"), held, full or held, 0.0)


@pytest.mark.parametrize(
    ("budget", "free", "missing"),
    [(None, 60, 0), (None, 50, 10), (200, 1000, 0), (150, 1000, 10), (150, 30, 30)],
)
def test_room_counts_what_is_begun_with_its_full_size(
    budget: int | None, free: int, missing: int
) -> None:
    parts = [stored(100), stored(0, 60)]
    assert Room(budget, free).missing_bytes(parts) == missing


def put(folder: Path, name: str, size: int, used_at: float) -> Path:
    file = folder / "model" / name
    file.parent.mkdir(exist_ok=True)
    (file.parent / STATE_FILE).touch()
    file.write_bytes(bytes(size))
    os.utime(file, (used_at, used_at))
    return file


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    old = put(tmp_path, "layer-00002.safetensors", 100, 1.0)
    new = put(tmp_path, "layer-00001.safetensors", 100, 3.0)
    left_over = put(tmp_path, "layer-00003.100.partial", 10, 2.0)
    PartStore(tmp_path, 250).make_room()
    assert (old.exists(), left_over.exists(), new.exists()) == (False, True, True)
    PartStore(tmp_path, 150).make_room()
    assert (left_over.exists(), new.exists()) == (False, True)


def test_what_is_held_stays_and_the_error_tells_the_numbers(tmp_path: Path) -> None:
    held = put(tmp_path, "layer-00001.safetensors", 100, 1.0)
    descriptor = hold(held, 100)
    assert descriptor is not None
    with pytest.raises(DiskBudgetError, match=r"100 bytes .* allows 60: raise it by 40"):
        PartStore(tmp_path, 60).make_room()
    os.close(descriptor)
    PartStore(tmp_path, 60).make_room()
    assert not held.exists()


def test_a_disk_that_is_too_small_is_said_so(tmp_path: Path) -> None:
    coming = put(tmp_path, f"layer-00001.{10**18}.partial", 10, 1.0)
    descriptor = hold(coming, 10)
    assert descriptor is not None
    with pytest.raises(DiskFullError, match=r"are missing\. Free some space"):
        PartStore(tmp_path, None).make_room()
    os.close(descriptor)


def test_text_files_are_never_evicted(tmp_path: Path) -> None:
    text = put(tmp_path, "config.json", 100, 1.0)
    PartStore(tmp_path, 1).make_room()
    assert text.exists()


@pytest.mark.parametrize("budget_bytes", [None, 1])
def test_what_is_not_ours_is_neither_counted_nor_deleted(
    tmp_path: Path, budget_bytes: int | None
) -> None:
    theirs = tmp_path / "a-model-of-mine"
    theirs.mkdir()
    ours = put(tmp_path, "layer-00001.safetensors", 100, 1.0)
    foreign = [
        theirs / "model.safetensors",
        theirs / "layer-00001.safetensors",
        theirs / "layer-00001.9.partial",
        tmp_path / "model.safetensors",
        ours.with_name("model.safetensors"),
        ours.with_name("adapter.9.partial"),
    ]
    for file in foreign:
        file.write_bytes(bytes(10**6))
    # More than any disk has is still to come.
    coming = put(tmp_path, f"layer-00002.{10**18}.partial", 10, 2.0)
    descriptor = hold(coming, 10)
    assert descriptor is not None
    store = PartStore(tmp_path, budget_bytes)
    assert {part.file for part in store.stored()} == {ours, coming}
    with pytest.raises((DiskBudgetError, DiskFullError)):
        store.make_room()
    os.close(descriptor)
    assert all(file.exists() for file in foreign)
    assert not ours.exists()
