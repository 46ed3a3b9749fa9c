"""The header of a safetensors file: bytes in, tensors out; pure.

What such a file is made of:

    8 bytes   length of the JSON, u64 little-endian
    N bytes   JSON: tensor name -> {dtype, shape, data_offsets}, and `__metadata__`
    ...       the weights, which nobody here reads
"""

import math
from dataclasses import dataclass

import msgspec

from meshnet_common.weights.errors import HeaderError

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library itself."""

_LFS_POINTER = b"version "


@dataclass(frozen=True, slots=True, order=True)
class TensorEntry:
    """One tensor's name, its dtype in safetensors' words, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def header_bytes(prefix: bytes, file_bytes: int) -> int:
    """Return the length of the JSON; raises HeaderError before anything is read or allocated."""
    if prefix == _LFS_POINTER:
        raise HeaderError("It is a Git LFS pointer, not the file; run `git lfs pull` there.")
    if len(prefix) < PREFIX_BYTES:
        raise HeaderError(f"The file has only {file_bytes} bytes.")
    length = int.from_bytes(prefix, "little")
    if not 0 < length <= MAX_HEADER_BYTES:
        raise HeaderError(f"Its header claims {length} bytes, allowed are {MAX_HEADER_BYTES}.")
    if PREFIX_BYTES + length > file_bytes:
        raise HeaderError(f"Its header claims {length} bytes, but the file has {file_bytes}.")
    return length


def parse_header(text: bytes, file_bytes: int) -> tuple[TensorEntry, ...]:
    """Read the JSON, given the size of the whole file; raises HeaderError."""
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except msgspec.MsgspecError as error:
        raise HeaderError(f"It is not the JSON of a safetensors header: {error}.") from error
    if any(dimension < 0 for entry in entries.values() for dimension in entry.shape):
        raise HeaderError("A tensor has a negative dimension.")
    end = max((entry.data_offsets[1] for entry in entries.values()), default=0)
    missing = PREFIX_BYTES + len(text) + end - file_bytes
    if missing > 0:
        raise HeaderError(f"The file is cut short: {missing} bytes of weights are missing.")
    return tuple(sorted(TensorEntry(name, e.dtype, e.shape) for name, e in entries.items()))
