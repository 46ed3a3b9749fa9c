"""Files that are used where they lie and checked as a whole, such as GGUF files."""

from pathlib import Path

from meshnet_common.edge.local_files import sha256_of
from meshnet_worker.weights.errors import WeightsNotFoundError, mismatch
from meshnet_worker.weights.part_files import disk_errors


class WholeFiles:
    """Remembers which files it has checked, as long as nobody writes to them."""

    def __init__(self) -> None:
        self._verified: set[tuple[str, int, str]] = set()

    def check(self, file: str, sha256: str) -> None:
        """Raise WeightsNotFoundError or DigestMismatchError unless this is the file; blocks."""
        path = Path(file)
        with disk_errors(path):
            if not path.is_file():
                raise WeightsNotFoundError(f"There is no file {file}; copy it there.")
            key = (file, path.stat().st_mtime_ns, sha256)
            if key in self._verified:
                return
            found = sha256_of(path)
        if found != sha256:
            raise mismatch(file, sha256, found)
        self._verified.add(key)
