"""Reads all bytes of a folder's checkpoint once, so that Workers can tell them from others."""

import asyncio
import hashlib
import time
from pathlib import Path

import structlog

from meshnet_common.edge.local_files import read_file_start, sha256_of
from meshnet_common.weights.headers import PREFIX_BYTES, PlacedTensor, place_tensors
from meshnet_common.weights.manifest import TEXT_FILES, FileRecord, Manifest
from meshnet_tracker.presets.errors import NoCheckpointError
from meshnet_tracker.presets.folder import weight_files

LINE_SECONDS = 5.0

log = structlog.get_logger()


async def folder_manifest(folder: Path) -> Manifest:
    """Hash each tensor and text file; says in the log how far it is. Raises CheckpointError."""
    try:
        names = await asyncio.to_thread(weight_files, folder)
        texts = [name for name in TEXT_FILES if await asyncio.to_thread((folder / name).is_file)]
        headers = {name: await asyncio.to_thread(_read_header, folder / name) for name in names}
        hashing = _Hashing(sum(t.size_bytes for _, tensors in headers.values() for t in tensors))
        records = [await asyncio.to_thread(_text_record, folder, name) for name in texts]
        for name, (start, tensors) in headers.items():
            digests = {t.entry.name: await hashing.tensor(folder / name, t) for t in tensors}
            records.append(await asyncio.to_thread(_record, folder / name, start, digests))
    except OSError as error:
        raise NoCheckpointError(f"{error.filename}: {error.strerror}.") from error
    return Manifest(files=tuple(records))


class _Hashing:
    def __init__(self, bytes_total: int) -> None:
        self._bytes_total = bytes_total
        self._bytes_done = 0
        self._began = self._said_at = time.monotonic()

    async def tensor(self, file: Path, tensor: PlacedTensor) -> str:
        # One tensor at a time, so that Ctrl-C ends it soon.
        digest = await asyncio.to_thread(sha256_of, file, tensor.start, tensor.end)
        self._bytes_done += tensor.size_bytes
        now = time.monotonic()
        if now - self._said_at >= LINE_SECONDS:
            self._said_at = now
            rate = self._bytes_done / (now - self._began)
            log.info(
                "weights hashed",
                bytes_done=self._bytes_done,
                bytes_total=self._bytes_total,
                bytes_per_second=round(rate),
                eta_seconds=round((self._bytes_total - self._bytes_done) / rate),
            )
        return digest


def _read_header(file: Path) -> tuple[bytes, tuple[PlacedTensor, ...]]:
    start = read_file_start(file)
    return start, place_tensors(start[PREFIX_BYTES:], file.stat().st_size)


def _text_record(folder: Path, name: str) -> FileRecord:
    file = folder / name
    return FileRecord(name=name, size_bytes=file.stat().st_size, sha256=sha256_of(file))


def _record(file: Path, start: bytes, digests: dict[str, str]) -> FileRecord:
    return FileRecord(
        name=file.name,
        size_bytes=file.stat().st_size,
        header_sha256=hashlib.sha256(start).hexdigest(),
        tensors=digests,
    )
