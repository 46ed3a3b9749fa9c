"""Checks a whole source file that lies here in parts, where only its own digest is known.

Once it is right it is marked so; the mark goes before any of its parts is fetched anew, so that a
crash in between leaves nothing unchecked.
"""

import hashlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from meshnet_worker.weights.description import place_file
from meshnet_worker.weights.errors import mismatch
from meshnet_worker.weights.hashing import hash_in_steps, ignore_hashed
from meshnet_worker.weights.layout import Layout, SourceFile
from meshnet_worker.weights.part_files import disk_errors
from meshnet_worker.weights.threads import in_thread


def unmark(folder: Path, names: Iterable[str]) -> None:
    """Forget that these source files were right; raises a WeightsError."""
    for name in names:
        with disk_errors(folder):
            _mark_of(folder, name).unlink(missing_ok=True)


async def check_assembled(folder: Path, layout: Layout, file: SourceFile, sha256: str) -> bool:
    """Check a source file if all of it is here; answers whether it is.

    Raises DigestMismatchError, after which none of its parts is left, or another WeightsError.
    """
    mark = _mark_of(folder, file.name)
    if mark.exists():
        return True
    parts = layout.parts_in(file)
    pieces = layout.whole_file(file)
    if pieces is None or not all((folder / part.file_name).exists() for part in parts):
        return False
    places = {
        piece.name: (folder / part.file_name, place)
        for part in parts
        for piece, place in part.places()
    }
    digest = hashlib.sha256(file.start)
    with disk_errors(folder):
        for piece in pieces:
            path, place = places[piece.name]
            end = place + piece.size_bytes
            await hash_in_steps(digest.update, path, place, end, ignore_hashed)
    if digest.hexdigest() != sha256:
        for part in parts:
            (folder / part.file_name).unlink(missing_ok=True)
        raise mismatch(file.name, sha256, digest.hexdigest())
    await in_thread(partial(place_file, mark, sha256.encode()))
    return True


def _mark_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.checked"
