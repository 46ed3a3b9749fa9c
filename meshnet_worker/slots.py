"""Numbered places on this host, each held by one living Worker through a locked file.

They give a Worker an identity that outlives it and that no second one shares, and they tell how
many Workers share this host's cores. A killed Worker's place is free at once.
"""

import os
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_runtime_path

from meshnet_common.errors import MeshnetError
from meshnet_common.ids import WorkerId


class StateFolderError(MeshnetError):
    """The Worker's state folder cannot be used."""

    exit_status = 3


@contextmanager
def claimed_identity(state_folder: Path) -> Iterator[WorkerId]:
    """Hold an identity of this folder, an old one if one is free; raises StateFolderError."""
    with _held_slot(state_folder) as slot:
        file = state_folder / f"worker-{slot}.id"
        # Empty is what a crash between creating and writing it leaves.
        if not file.exists() or not file.read_text().strip():
            file.write_text(f"w-{uuid.uuid4().hex}\n")
        yield WorkerId(file.read_text().strip())


class HostShare:
    """How the Workers of one host divide its cores."""

    def __init__(self, folder: Path, cores: int) -> None:
        self._folder = folder
        self._cores = cores

    def threads(self) -> int:
        """Divide the cores: a Worker's share of the cores now, at least one."""
        workers = sum(1 for lock in self._folder.glob("*.lock") if _is_held(lock))
        return max(1, self._cores // max(1, workers))


@contextmanager
def shared_host(folder: Path | None = None) -> Iterator[HostShare]:
    """Count as one of this host's Workers until the block ends; raises StateFolderError."""
    folder = folder or _runtime_folder()
    with _held_slot(folder):
        yield HostShare(folder, len(os.sched_getaffinity(0)))


def _runtime_folder() -> Path:
    with warnings.catch_warnings():
        # On hosts without a session manager platformdirs warns, and falls back to a fit folder.
        warnings.simplefilter("ignore")
        return user_runtime_path("meshnet") / "workers"


@contextmanager
def _held_slot(folder: Path) -> Iterator[int]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        slot, lock = next(
            (slot, lock)
            for slot in count()
            if (lock := _try_lock(folder / f"worker-{slot}.lock")) is not None
        )
    except OSError as error:
        raise StateFolderError(f"{folder}: {error.strerror}. Choose another folder.") from error
    try:
        yield slot
    finally:
        lock.release()


def _try_lock(file: Path) -> FileLock | None:
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def _is_held(file: Path) -> bool:
    lock = _try_lock(file)
    if lock is None:
        return True
    lock.release()
    return False
