"""The header of a GGUF file: bytes in, tensors out; pure.

What such a file is made of, all little-endian:

    "GGUF", version u32, tensor count u64, field count u64
    fields    key, type u32, value: architecture facts and a whole tokenizer
    tensors   name, dimensions (fastest first), kind u32, offset u64 into the data
    data      blocks of packed weights, aligned; nobody here reads them

A file may come from anywhere, so no count is believed: every read is checked against the bytes
that are there, and everything that is kept has a limit.
"""

import math
import struct
from collections.abc import Mapping
from typing import NamedTuple

from meshnet_common.weights.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 128 << 20
MAX_FIELDS = 4096
MAX_TENSORS = 100_000
MAX_NAME_BYTES = 256
MAX_TEXT_BYTES = 1 << 16
MAX_DIMENSIONS = 4
MAX_ELEMENTS = 1 << 44
DEFAULT_ALIGNMENT = 32

Scalar = int | float | bool | str

_SCALARS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i",
    6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_TEXT = 8
_ARRAY = 9


class GgufError(CheckpointError):
    """The file does not begin with a GGUF header that this release can use."""


class GgufKind(NamedTuple):
    """How a tensor's values lie in the file: blocks of so many values in so many bytes."""

    name: str
    block_values: int
    block_bytes: int


KINDS: Mapping[int, GgufKind] = {
    0: GgufKind("F32", 1, 4),
    1: GgufKind("F16", 1, 2),
    2: GgufKind("Q4_0", 32, 18),
    3: GgufKind("Q4_1", 32, 20),
    8: GgufKind("Q8_0", 32, 34),
    12: GgufKind("Q4_K", 256, 144),
    13: GgufKind("Q5_K", 256, 176),
    14: GgufKind("Q6_K", 256, 210),
    30: GgufKind("BF16", 1, 2),
}
"""By the number that stands in the file."""


class GgufTensor(NamedTuple):
    """One tensor; `shape` slowest dimension first, `start` counted from the file's beginning."""

    name: str
    kind: GgufKind
    shape: tuple[int, ...]
    start: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements // self.kind.block_values * self.kind.block_bytes

    @property
    def is_packed(self) -> bool:
        """Whether its values must be unpacked before they can be computed with."""
        return self.kind.block_values > 1


class GgufHeader(NamedTuple):
    """Single-valued fields by key (arrays are left out), and the tensors by name."""

    fields: Mapping[str, Scalar]
    tensors: Mapping[str, GgufTensor]

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture", ""))

    def number(self, fact: str) -> int | None:
        """Find a whole number among the architecture's facts, such as `block_count`."""
        value = self.fields.get(f"{self.architecture}.{fact}")
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def parse_gguf_header(data: memoryview) -> GgufHeader:
    """Read the header of a whole file, mapped or in memory; raises GgufError."""
    if data[:4] != MAGIC:
        raise GgufError("It does not begin with GGUF.")
    reader = _Reader(data)
    version = reader.number("<I")
    if version not in VERSIONS:
        raise GgufError(f"It has version {version}; known are {VERSIONS}.")
    tensor_count, field_count = reader.number("<Q"), reader.number("<Q")
    if tensor_count > MAX_TENSORS or field_count > MAX_FIELDS:
        raise GgufError(f"It claims {tensor_count} tensors and {field_count} fields.")
    fields = dict(filter(None, (reader.field() for _ in range(field_count))))
    found = [reader.tensor() for _ in range(tensor_count)]
    alignment = fields.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_TEXT_BYTES:
        raise GgufError(f"It claims an alignment of {alignment}.")
    data_start = -(-reader.place // alignment) * alignment
    tensors = {t.name: t._replace(start=data_start + t.start) for t in found}
    if len(tensors) != len(found):
        raise GgufError("Two tensors have the same name.")
    for tensor in tensors.values():
        if tensor.start + tensor.size_bytes > len(data):
            raise GgufError(f"The file is cut short: {tensor.name} is missing.")
    return GgufHeader(fields, tensors)


class _Reader:
    """Reads on from `place`, never beyond the bytes that a header may have."""

    def __init__(self, data: memoryview) -> None:
        self._data = data[:MAX_HEADER_BYTES]
        self.place = len(MAGIC)

    def number(self, form: str) -> int:
        return int(self._scalar(form))

    def field(self) -> tuple[str, Scalar] | None:
        """Read one field; None for an array, which is skipped."""
        key, kind = self._text(MAX_NAME_BYTES), self.number("<I")
        if kind == _ARRAY:
            self._skip_array()
            return None
        if kind == _TEXT:
            text = self._take(self.number("<Q"))
            return (key, _decoded(text)) if len(text) <= MAX_TEXT_BYTES else None
        return key, self._scalar(_form(kind))

    def tensor(self) -> GgufTensor:
        """Read one entry of the tensor table; `start` counts from where the data begins."""
        name, dimensions = self._text(MAX_NAME_BYTES), self.number("<I")
        if not 0 < dimensions <= MAX_DIMENSIONS:
            raise GgufError(f"{name} has {dimensions} dimensions.")
        shape = tuple(self.number("<Q") for _ in range(dimensions))[::-1]
        number, start = self.number("<I"), self.number("<Q")
        kind = KINDS.get(number)
        if kind is None:
            known = ", ".join(kind.name for kind in KINDS.values())
            raise GgufError(f"{name} is of kind {number}; this release unpacks {known}.")
        if not 0 < math.prod(shape) <= MAX_ELEMENTS or shape[-1] % kind.block_values:
            raise GgufError(f"{name} has a shape that {kind.name} cannot have: {shape}.")
        return GgufTensor(name, kind, shape, start)

    def _skip_array(self) -> None:
        kind, count = self.number("<I"), self.number("<Q")
        if kind != _TEXT:
            self._take(count * struct.calcsize(_form(kind)))
            return
        # Each text takes eight bytes at least, so a lie about the count ends at the limit.
        for _ in range(count):
            self._take(self.number("<Q"))

    def _text(self, limit: int) -> str:
        size = self.number("<Q")
        if size > limit:
            raise GgufError(f"It has a name of {size} bytes.")
        return _decoded(self._take(size))

    def _scalar(self, form: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return value

    def _take(self, size: int) -> memoryview:
        end = self.place + size
        if end > len(self._data):
            raise GgufError(f"Its header goes on beyond {len(self._data)} bytes.")
        taken = self._data[self.place : end]
        self.place = end
        return taken


def _form(kind: int) -> str:
    form = _SCALARS.get(kind)
    if form is None:
        raise GgufError(f"It has a field of unknown type {kind}.")
    return form


def _decoded(text: memoryview) -> str:
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError as error:
        raise GgufError("It has a name that is not UTF-8.") from error
