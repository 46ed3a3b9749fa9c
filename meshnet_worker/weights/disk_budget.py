"""Keeps the folder of parts within a disk budget: what was used longest ago goes first.

What a Worker of this host has loaded, loads or fetches is locked and stays. So does what is not
ours: somebody's own models may lie in the same folder.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from filelock import FileLock

from meshnet_worker.weights.description import STATE_FILE
from meshnet_worker.weights.errors import DiskBudgetError, DiskFullError
from meshnet_worker.weights.layout import PART_NAME
from meshnet_worker.weights.part_files import disk_errors, evict

_WHOLE = re.compile(rf"(?:{PART_NAME.pattern})\.safetensors")
_PARTIAL = re.compile(rf"(?:{PART_NAME.pattern})\.([0-9]{{1,19}})\.partial")
_LOCK_SECONDS = 30.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stored:
    """One part on disk; `full_bytes` is what it will take once it is whole."""

    file: Path
    held_bytes: int
    full_bytes: int
    used_at: float


@dataclass(frozen=True, slots=True)
class Room:
    """What is to be held: all parts within the budget, and what is yet to come on the disk."""

    budget_bytes: int | None
    disk_free_bytes: int

    def missing_bytes(self, stored: Sequence[Stored]) -> int:
        """How much must go before everything that is begun fits."""
        full = sum(part.full_bytes for part in stored)
        coming = full - sum(part.held_bytes for part in stored)
        over_budget = full - self.budget_bytes if self.budget_bytes is not None else 0
        return max(over_budget, coming - self.disk_free_bytes, 0)


class PartStore:
    """The folder below which all models' parts lie; the Workers of one host share it."""

    def __init__(self, folder: Path, budget_bytes: int | None) -> None:
        self.folder = folder
        self._budget_bytes = budget_bytes

    def make_room(self) -> None:
        """Evict until all that is begun fits; blocks. Raises DiskBudgetError or DiskFullError.

        Call it when the parts to be fetched are claimed: they count with their full size.
        """
        with (
            disk_errors(self.folder),
            FileLock(self.folder / ".budget.lock", timeout=_LOCK_SECONDS),
        ):
            stored = self.stored()
            free_bytes = shutil.disk_usage(self.folder).free
            room = Room(self._budget_bytes, free_bytes)
            for part in sorted(stored, key=lambda part: part.used_at):
                missing = room.missing_bytes(stored)
                if not missing:
                    return
                if evict(part.file):
                    log.info("weights evicted", file=str(part.file), bytes=part.held_bytes)
                    stored.remove(part)
                    room = Room(self._budget_bytes, shutil.disk_usage(self.folder).free)
            if missing := room.missing_bytes(stored):
                raise self._no_room(stored, missing, room.disk_free_bytes)

    def stored(self) -> list[Stored]:
        """List all parts, whole or not; raises OSError.

        Ours are the files named like parts, in folders that carry the mark of a description.
        """
        found = []
        for mark in self.folder.glob(f"*/{STATE_FILE}"):
            for file in mark.parent.iterdir():
                if (part := _stored(file)) is not None:
                    found.append(part)
        return found

    def _no_room(
        self, stored: Sequence[Stored], missing: int, free_bytes: int
    ) -> DiskBudgetError | DiskFullError:
        full = sum(part.full_bytes for part in stored)
        facts = f"{full} bytes are in use or to be fetched in {self.folder}"
        if self._budget_bytes is not None and full > self._budget_bytes:
            return DiskBudgetError(
                f"{facts}, and --disk-budget allows {self._budget_bytes}: raise it by {missing}."
            )
        return DiskFullError(
            f"{facts}, and the disk has {free_bytes} free: {missing} are missing. Free some space, "
            "or choose another disk with --weights-dir."
        )


def _stored(file: Path) -> Stored | None:
    partial = _PARTIAL.fullmatch(file.name)
    if partial is None and _WHOLE.fullmatch(file.name) is None:
        return None
    try:
        facts = file.stat()
    except FileNotFoundError:
        return None
    full_bytes = int(partial[1]) if partial else facts.st_size
    return Stored(file, facts.st_size, full_bytes, facts.st_mtime)
