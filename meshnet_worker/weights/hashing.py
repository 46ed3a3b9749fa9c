"""Hashes bytes of large files in steps, so that whoever is told to stop waits for one step only."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from meshnet_worker.weights.threads import in_thread

STEP_BYTES = 64 << 20
CHUNK_BYTES = 4 << 20

OnHashed = Callable[[int], None]
"""Hears the bytes of each step."""


def ignore_hashed(_size_bytes: int) -> None:
    """Hear how far the hashing is, and do nothing about it."""


async def sha256_in_steps(file: Path, start: int, end: int, on_hashed: OnHashed) -> str:
    """Hash bytes [start, end) of a file, or up to its end; raises OSError."""
    digest = hashlib.sha256()
    await hash_in_steps(digest.update, file, start, end, on_hashed)
    return digest.hexdigest()


async def hash_in_steps(
    update: Callable[[bytes], None], file: Path, start: int, end: int, on_hashed: OnHashed
) -> None:
    """Give bytes [start, end) of a file, or up to its end, to `update`; raises OSError."""
    for place in range(start, end, STEP_BYTES):
        stop = min(place + STEP_BYTES, end)
        await in_thread(partial(_hash_into, update, file, place, stop))
        on_hashed(stop - place)


def _hash_into(update: Callable[[bytes], None], file: Path, start: int, end: int) -> None:
    with file.open("rb") as opened:
        opened.seek(start)
        left = end - start
        while left and (chunk := opened.read(min(left, CHUNK_BYTES))):
            update(chunk)
            left -= len(chunk)
