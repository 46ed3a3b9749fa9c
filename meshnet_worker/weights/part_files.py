"""Parts on disk: one is written front to back as `.partial`, then renamed, whole and verified.

Locks say what other Workers of this host may do: an exclusive one is held by whoever writes, a
shared one by whoever has loaded or loads it. They end with their process.
"""

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from meshnet_worker.weights.errors import DiskFullError, WeightsFolderError, mismatch
from meshnet_worker.weights.hashing import ignore_hashed, sha256_in_steps
from meshnet_worker.weights.layout import Part

SYNC_BYTES = 4 << 20
"""Written bytes are made durable in steps of this size, and a resumed download trusts those."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn an OSError into what a person can act on."""
    try:
        yield
    except OSError as error:
        facts = f"{place}: {error.strerror or error}."
        if error.errno in _FULL:
            raise DiskFullError(f"{facts} Free some space or lower --disk-budget.") from error
        raise WeightsFolderError(f"{facts} Choose another with --weights-dir.") from error


def hold(file: Path, size_bytes: int) -> int | None:
    """Lock a whole part against eviction and mark it used; None when it is not there.

    Returns a descriptor, whose closing is the release. Raises OSError.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return None
    if not _lock(descriptor, file, fcntl.LOCK_SH):
        return None
    with _closed_on_error(descriptor):
        if os.fstat(descriptor).st_size == size_bytes:
            os.utime(file)
            return descriptor
        file.unlink(missing_ok=True)
    os.close(descriptor)
    return None


def evict(file: Path) -> bool:
    """Delete a part that nobody holds; answers whether it is gone. Raises OSError."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return True
    if not _lock(descriptor, file, fcntl.LOCK_EX):
        return not file.exists()
    file.unlink(missing_ok=True)
    os.close(descriptor)
    return True


def partial_name(part: Part) -> str:
    """Name the file of an unfinished part; what it will take is part of its name."""
    return f"{part.name}.{part.size_bytes}.partial"


class PartWriter:
    """Writes one part; only one process has a writer of it at a time."""

    def __init__(self, folder: Path, part: Part, descriptor: int) -> None:
        self.part = part
        self._final = folder / part.file_name
        self._partial = folder / partial_name(part)
        self._descriptor = descriptor
        self.held_bytes = self._resume()

    @classmethod
    def claim(cls, folder: Path, part: Part) -> Self | None:
        """Begin or go on; None while another process writes it. Raises a WeightsError."""
        partial = folder / partial_name(part)
        with disk_errors(partial):
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT, 0o644)
            if not _lock(descriptor, partial, fcntl.LOCK_EX):
                return None
            if (folder / part.file_name).exists():
                partial.unlink(missing_ok=True)
                os.close(descriptor)
                return None
            # Else its lock would outlive the try, and the next one wait for itself.
            with _closed_on_error(descriptor):
                return cls(folder, part, descriptor)

    @property
    def is_complete(self) -> bool:
        return self.held_bytes == self.part.size_bytes

    def append(self, data: memoryview) -> None:
        """Write the bytes that come next; blocks. Raises a WeightsError."""
        with disk_errors(self._partial):
            while data:
                written = os.write(self._descriptor, data[: self._until_sync])
                self.held_bytes += written
                data = data[written:]
                if self._until_sync == SYNC_BYTES:
                    os.fdatasync(self._descriptor)

    async def verify(self, digests: Mapping[str, str]) -> None:
        """Check a complete part's tensors, as far as their digests are known.

        Raises DigestMismatchError, after which nothing of it is left, or another WeightsError.
        """
        with disk_errors(self._partial):
            for piece, place in self.part.places():
                expected = digests.get(piece.name)
                if expected is None:
                    continue
                end = place + piece.size_bytes
                found = await sha256_in_steps(self._partial, place, end, ignore_hashed)
                if found != expected:
                    self._discard()
                    raise mismatch(f"{piece.name} of {piece.file}", expected, found)

    def finish(self) -> int:
        """Place a complete part; returns the descriptor of `hold`, blocks.

        Raises a WeightsError.
        """
        with disk_errors(self._partial):
            os.fdatasync(self._descriptor)
            self._partial.rename(self._final)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
            folder = os.open(self._final.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def close(self) -> None:
        """Let go; what is not finished stays for the next try, unless there is nothing of it."""
        if self._descriptor < 0:
            return
        if self.held_bytes <= len(self.part.header):
            self._partial.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1

    @property
    def _until_sync(self) -> int:
        return SYNC_BYTES - (self.held_bytes - len(self.part.header)) % SYNC_BYTES

    def _resume(self) -> int:
        """Cut the file back to what was durable before anything behind it was written."""
        header = self.part.header
        data_bytes = os.fstat(self._descriptor).st_size - len(header)
        durable = max(data_bytes - 1, 0) // SYNC_BYTES * SYNC_BYTES
        if not durable or os.pread(self._descriptor, len(header), 0) != header:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, header, 0)
            durable = 0
        os.ftruncate(self._descriptor, len(header) + durable)
        return os.lseek(self._descriptor, 0, os.SEEK_END)

    def _discard(self) -> None:
        self._partial.unlink()
        os.close(self._descriptor)
        self._descriptor = -1


@contextmanager
def _closed_on_error(descriptor: int) -> Iterator[None]:
    try:
        yield
    except OSError:
        os.close(descriptor)
        raise


def _lock(descriptor: int, file: Path, kind: int) -> bool:
    """Try to lock; closes the descriptor if that fails, or if the file was replaced meanwhile."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        now = file.stat()
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        return False
    if now.st_ino != os.fstat(descriptor).st_ino:
        os.close(descriptor)
        return False
    return True
