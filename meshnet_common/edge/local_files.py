"""Reads headers and hashes bytes of files on this machine."""

import hashlib
from pathlib import Path

from meshnet_common.weights.errors import HeaderError
from meshnet_common.weights.headers import PREFIX_BYTES, header_bytes

CHUNK_BYTES = 1 << 22


def read_file_start(file: Path) -> bytes:
    """Read a safetensors file's length and JSON; raises HeaderError, OSError."""
    with file.open("rb") as opened:
        prefix = opened.read(PREFIX_BYTES)
        try:
            length = header_bytes(prefix, file.stat().st_size)
        except HeaderError as error:
            raise HeaderError(f"{file.name}: {error.detail}") from error
        return prefix + opened.read(length)


def sha256_of(file: Path, start: int = 0, end: int | None = None) -> str:
    """Hash bytes [start, end) of a file, or up to its end; blocks. Raises OSError."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        opened.seek(start)
        left = end - start if end is not None else None
        while left is None or left > 0:
            chunk = opened.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
            if not chunk:
                break
            digest.update(chunk)
            left = left - len(chunk) if left is not None else None
    return digest.hexdigest()
