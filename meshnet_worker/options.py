"""What a Volunteer chose for this Worker, as values."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from meshnet_common.errors import MeshnetError

CPU_AUTO_SHARE = 0.5
"""`--vram auto` on a CPU-only host takes this share of the available memory."""
CUDA_AUTO_SHARE = 0.9
"""And this one of a CUDA device's: passes need room too, beside weights and KV."""

KV_WAIT_SECONDS = 120.0
DECODE_GROUPS = 2
GRACE_SECONDS = 30.0
MAX_REGION_CHARACTERS = 64
MAX_THREADS = 1024
MAX_SIZE_BYTES = 1 << 60
"""So far every number of bytes is exact enough, and further than any disk."""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


class SizeOptionError(MeshnetError):
    """It is not a size."""


@dataclass(frozen=True, slots=True)
class AutoVram:
    """Most of the free memory of a CUDA device, or half of the available memory of the host."""


@dataclass(frozen=True, slots=True)
class ShareOfVram:
    """A share of the free memory."""

    share: float


@dataclass(frozen=True, slots=True)
class BytesOfVram:
    """A size in bytes."""

    size_bytes: int


Vram = AutoVram | ShareOfVram | BytesOfVram


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """All options of `meshnet-worker start`; `threads` None shares the host's cores."""

    tracker_urls: tuple[str, ...]
    vram: Vram
    host: str
    port: int
    advertised_url: str | None
    device: str
    threads: int | None
    tracker_mode: bool
    state_folder: Path
    ready_file: Path | None
    chunk_tokens: int
    weights_folder: Path
    disk_budget_bytes: int | None = None
    """How much fetched weights may take on disk; None is all of it."""
    decode_groups: int = DECODE_GROUPS
    """Groups in which this Worker, as a Head Worker, keeps its Sessions."""
    compiles: bool = True
    """Whether the engine may compile Decode Steps."""
    kv_wait_seconds: float = KV_WAIT_SECONDS
    """How long an answer may wait for KV before it ends with an error."""
    grace_seconds: float = GRACE_SECONDS
    """How long a Worker that was told to stop may finish what it runs."""
    region: str = ""
    """Where this Worker is, in the Volunteer's words."""


def split_urls(texts: Iterable[str]) -> tuple[str, ...]:
    """Take apart what names several URLs between commas; each is told once."""
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def parse_vram(text: str) -> Vram:
    """Read `auto`, `80%`, `10GiB`, `10GB` or plain bytes; raises SizeOptionError."""
    if text.strip().lower() == "auto":
        return AutoVram()
    share = _SHARE.fullmatch(text.strip())
    if share is not None and 0 < float(share[1]) <= 100:
        return ShareOfVram(float(share[1]) / 100)
    size_bytes = _size_bytes(text)
    if size_bytes is None:
        raise SizeOptionError(f"{text!r}: write auto, 80%, 10GiB, 500MB or a number of bytes.")
    return BytesOfVram(size_bytes)


def parse_size(text: str) -> int:
    """Read `100GB`, `1.5TiB` or plain bytes; raises SizeOptionError."""
    size_bytes = _size_bytes(text)
    if size_bytes is None:
        raise SizeOptionError(f"{text!r}: write 100GB, 1.5TiB or a number of bytes.")
    return size_bytes


def budget_bytes(vram: Vram, free_bytes: int, *, is_cpu: bool) -> int:
    """How many bytes a Volunteer lends of a device with `free_bytes` free."""
    match vram:
        case AutoVram():
            return int(free_bytes * (CPU_AUTO_SHARE if is_cpu else CUDA_AUTO_SHARE))
        case ShareOfVram(share=share):
            return int(free_bytes * share)
        case BytesOfVram(size_bytes=size_bytes):
            return size_bytes


def _size_bytes(text: str) -> int | None:
    size = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(size[2].upper()) if size else None
    if size is None or factor is None:
        return None
    size_bytes = float(size[1]) * factor
    return int(size_bytes) if 1 <= size_bytes <= MAX_SIZE_BYTES else None
