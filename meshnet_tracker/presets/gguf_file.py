"""Reads a GGUF file on the Tracker's machine: its header, and once all of it for its sha256."""

import hashlib
import mmap
from pathlib import Path

from meshnet_common.presets import Variant
from meshnet_common.weights.gguf_header import MAGIC, GgufError, GgufHeader, parse_gguf_header
from meshnet_tracker.presets.errors import GgufVariantError
from meshnet_tracker.presets.gguf import gguf_variant
from meshnet_tracker.records import PresetRecord


def is_gguf(source: str) -> bool:
    """Whether what an Operator typed is a GGUF file here."""
    file = Path(source).expanduser()
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC


def read_gguf_variant(record: PresetRecord, file: Path) -> Variant:
    """Work out the Variant that a file holds; raises GgufVariantError."""
    path = file.expanduser().resolve()
    try:
        header = _read_header(path)
        with path.open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    except GgufError as error:
        raise GgufVariantError(f"{path.name}: {error.detail}") from error
    except OSError as error:
        raise GgufVariantError(f"{path}: {error.strerror}.") from error
    return gguf_variant(record, header, str(path), sha256)


def _read_header(path: Path) -> GgufHeader:
    with path.open("rb") as opened:
        # Never closed by hand: an error's traceback may still hold a view of it.
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    return parse_gguf_header(memoryview(mapped))
