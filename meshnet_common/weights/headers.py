"""The header of a safetensors file: bytes in, tensors out; pure.

What such a file is made of:

    8 bytes   length of the JSON, u64 little-endian
    N bytes   JSON: tensor name -> {dtype, shape, data_offsets}, and `__metadata__`
    ...       the weights, which nobody here reads
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from meshnet_common.weights.errors import HeaderError

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library itself."""

MAX_TENSORS = 200_000
MAX_DIMENSIONS = 16
MAX_DIMENSION = 1 << 48

_WIDTHS: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}

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


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor and its bytes [start, end), counted from the beginning of its file."""

    entry: TensorEntry
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


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
    """Read the JSON, given the size of the whole file, by name; raises HeaderError."""
    return tuple(sorted(placed.entry for placed in place_tensors(text, file_bytes)))


def place_tensors(text: bytes, file_bytes: int) -> tuple[PlacedTensor, ...]:
    """Read the JSON, given the size of the whole file, by place; raises HeaderError.

    What is returned lies inside the file, and no two tensors share a byte.
    """
    # A tensor has four colons and few commas: a cheap bound on what decoding may allocate.
    if text.count(b":") > 5 * MAX_TENSORS or text.count(b",") > 16 * MAX_TENSORS:
        raise HeaderError(f"It names more than {MAX_TENSORS} tensors.")
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except (msgspec.MsgspecError, RecursionError) as error:
        raise HeaderError(f"It is not the JSON of a safetensors header: {error}.") from error
    data_start = PREFIX_BYTES + len(text)
    placed = [_placed(name, entry, data_start) for name, entry in entries.items()]
    placed.sort(key=lambda tensor: (tensor.start, tensor.end))
    end = max((tensor.end for tensor in placed), default=0)
    if end > file_bytes:
        missing = end - file_bytes
        raise HeaderError(f"The file is cut short: {missing} bytes of weights are missing.")
    for tensor, after in pairwise(placed):
        if after.start < tensor.end:
            raise HeaderError(f"{tensor.entry.name:.80} and {after.entry.name:.80} overlap.")
    return tuple(placed)


def write_header(tensors: Iterable[PlacedTensor]) -> bytes:
    """Lay out the beginning of a file that holds these tensors in this order."""
    entries: dict[str, _Entry] = {}
    offset = 0
    for tensor in tensors:
        offsets = (offset, offset + tensor.size_bytes)
        entries[tensor.entry.name] = _Entry(tensor.entry.dtype, tensor.entry.shape, offsets)
        offset += tensor.size_bytes
    text = msgspec.json.encode(entries)
    # Weights begin at a multiple of 8, as the library itself writes them.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(PREFIX_BYTES, "little") + text


def _placed(name: str, entry: _Entry, data_start: int) -> PlacedTensor:
    start, end = entry.data_offsets
    if any(dimension < 0 for dimension in entry.shape):
        raise HeaderError("A tensor has a negative dimension.")
    # Before anything is multiplied.
    if len(entry.shape) > MAX_DIMENSIONS or max(entry.shape, default=0) > MAX_DIMENSION:
        raise HeaderError(f"{name:.80} has an absurd shape.")
    if not 0 <= start <= end:
        raise HeaderError(f"{name:.80} lies at [{start}, {end}).")
    tensor = TensorEntry(name, entry.dtype, entry.shape)
    width = _WIDTHS.get(entry.dtype)
    if width is not None and tensor.elements * width != end - start:
        facts = f"{end - start} bytes for {entry.shape} of {entry.dtype}"
        raise HeaderError(f"{name:.80} has {facts}.")
    return PlacedTensor(tensor, data_start + start, data_start + end)
