"""Files that are used where they lie and checked as a whole, such as GGUF files."""

import os
from pathlib import Path

from meshnet_worker.weights.errors import WeightsNotFoundError, mismatch
from meshnet_worker.weights.hashing import sha256_in_steps
from meshnet_worker.weights.part_files import disk_errors
from meshnet_worker.weights.progress import OnProgress


class WholeFiles:
    """Remembers which files it has checked, as long as nobody writes to them."""

    def __init__(self) -> None:
        self._verified: set[tuple[str, int, str]] = set()

    async def check(self, file: str, sha256: str, on_progress: OnProgress) -> None:
        """Raise WeightsNotFoundError or DigestMismatchError unless this is the file."""
        path, done = Path(file), 0

        def hashed(size_bytes: int) -> None:
            nonlocal done
            done += size_bytes
            on_progress(done, facts.st_size)

        with disk_errors(path):
            facts = _facts_of(path)
            key = (file, facts.st_mtime_ns, sha256)
            if key in self._verified:
                return
            found = await sha256_in_steps(path, 0, facts.st_size, hashed)
        if found != sha256:
            raise mismatch(file, sha256, found)
        self._verified.add(key)


def _facts_of(file: Path) -> os.stat_result:
    if not file.is_file():
        raise WeightsNotFoundError(f"There is no file {file}; copy it there.")
    return file.stat()
