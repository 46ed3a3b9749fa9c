"""How a checkpoint's tensors lie on this machine: one file per Layer and end of the model; pure.

    source  model-00001-of-00002.safetensors  [embeddings][layer 0][layer 1 ...
            model-00002-of-00002.safetensors  ... layer 1][layer 2][norms][output]
    here    embeddings, layer-00000, layer-00001, layer-00002, norms, output (.safetensors)

A part is a whole safetensors file with its own header, so it is either there or not. Its tensors
keep the order in which they lie in the source: it is written from front to back.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import msgspec

from meshnet_common.shard_range import ShardRange
from meshnet_common.weights.errors import HeaderError
from meshnet_common.weights.headers import (
    MAX_TENSORS,
    PREFIX_BYTES,
    PlacedTensor,
    TensorEntry,
    place_tensors,
    write_header,
)
from meshnet_common.weights.manifest import FileRecord
from meshnet_common.weights.outline import outline_checkpoint
from meshnet_worker.weights.errors import DigestMismatchError, mismatch

PART_NAME = re.compile(r"embeddings|norms|output|layer-[0-9]{5,}")
"""What a part may be called: no other file in a folder for weights is ours."""


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A safetensors file as its source has it; `start` is its length and JSON."""

    name: str
    size_bytes: int
    start: bytes
    etag: str = ""

    def tensors(self) -> tuple[PlacedTensor, ...]:
        """Place its tensors; raises HeaderError."""
        try:
            return place_tensors(self.start[PREFIX_BYTES:], self.size_bytes)
        except HeaderError as error:
            raise HeaderError(f"{self.name}: {error.detail}") from error


def check_start(found: SourceFile, record: FileRecord) -> None:
    """Raise DigestMismatchError unless a file has the size and the header that are known."""
    if record.size_bytes and found.size_bytes != record.size_bytes:
        raise DigestMismatchError(
            f"{found.name} has {found.size_bytes} bytes, not {record.size_bytes}."
        )
    start_sha256 = hashlib.sha256(found.start).hexdigest()
    if record.header_sha256 and start_sha256 != record.header_sha256:
        raise mismatch(f"The header of {found.name}", record.header_sha256, start_sha256)


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor of a part, and where it is in which source file."""

    file: str
    tensor: PlacedTensor

    @property
    def name(self) -> str:
        return self.tensor.entry.name

    @property
    def size_bytes(self) -> int:
        return self.tensor.size_bytes


@dataclass(frozen=True, slots=True)
class Part:
    """One file on this machine: `header`, then its pieces without gaps."""

    name: str
    pieces: tuple[Piece, ...]
    header: bytes

    @classmethod
    def of(cls, name: str, pieces: tuple[Piece, ...]) -> Self:
        return cls(name, pieces, write_header(piece.tensor for piece in pieces))

    @property
    def file_name(self) -> str:
        return f"{self.name}.safetensors"

    @property
    def size_bytes(self) -> int:
        return len(self.header) + sum(piece.size_bytes for piece in self.pieces)

    def places(self) -> Iterable[tuple[Piece, int]]:
        """Each piece with the first of its bytes in this part's file."""
        place = len(self.header)
        for piece in self.pieces:
            yield piece, place
            place += piece.size_bytes


class Layout:
    """All parts of one checkpoint; raises HeaderError, ConfigError."""

    def __init__(self, files: tuple[SourceFile, ...], layer_count: int | None) -> None:
        self.files = files
        self._pieces = _pieces_of(files)
        outline = outline_checkpoint(
            [piece.tensor.entry for piece in self._pieces.values()], layer_count
        )
        self._layers = [
            self._part(f"layer-{number:05d}", tensors)
            for number, tensors in enumerate(outline.layers)
        ]
        embeddings = (outline.token_embedding, *outline.other_embeddings)
        self._embeddings = self._part("embeddings", embeddings)
        self._norms = self._part("norms", outline.norms)
        # Without a head of its own a model uses the token embedding once more.
        self._output = self._part("output", outline.output) or self._embeddings

    def parts_of(self, shard_range: ShardRange) -> tuple[Part, ...]:
        """List the parts of a range; what may belong to either end is there for both."""
        parts: list[Part | None] = []
        if shard_range.start == 0:
            parts += [self._embeddings, self._norms]
        parts += self._layers[shard_range.start : shard_range.end]
        if shard_range.end == len(self._layers):
            parts += [self._norms, self._output]
        return tuple(dict.fromkeys(part for part in parts if part is not None))

    @property
    def all_parts(self) -> tuple[Part, ...]:
        return self.parts_of(ShardRange(0, len(self._layers)))

    def parts_in(self, file: SourceFile) -> tuple[Part, ...]:
        """List the parts that need a source file."""
        return tuple(
            part for part in self.all_parts if any(piece.file == file.name for piece in part.pieces)
        )

    def index(self) -> bytes:
        """Write the index by which a reader finds each tensor's part."""
        weight_map = {p.name: part.file_name for part in self.all_parts for p in part.pieces}
        return msgspec.json.encode({"metadata": {}, "weight_map": weight_map})

    def whole_file(self, file: SourceFile) -> tuple[Piece, ...] | None:
        """The pieces that make up a source file's bytes behind its start; None with a gap."""
        kept = {piece.name for part in self.all_parts for piece in part.pieces}
        place = len(file.start)
        pieces = []
        for tensor in file.tensors():
            if tensor.start != place or tensor.entry.name not in kept:
                return None
            pieces.append(self._pieces[tensor.entry.name])
            place = tensor.end
        return tuple(pieces) if place == file.size_bytes else None

    def _part(self, name: str, tensors: Iterable[TensorEntry]) -> Part | None:
        order = {file.name: place for place, file in enumerate(self.files)}
        pieces = [self._pieces[tensor.name] for tensor in tensors]
        pieces.sort(key=lambda piece: (order[piece.file], piece.tensor.start))
        return Part.of(name, tuple(pieces)) if pieces else None


def _pieces_of(files: tuple[SourceFile, ...]) -> dict[str, Piece]:
    pieces: dict[str, Piece] = {}
    for file in files:
        for tensor in file.tensors():
            if tensor.entry.name in pieces:
                raise HeaderError(f"{tensor.entry.name:.80} is in two files.")
            pieces[tensor.entry.name] = Piece(file.name, tensor)
        if len(pieces) > MAX_TENSORS:
            raise HeaderError(f"The files name more than {MAX_TENSORS} tensors.")
    return pieces
