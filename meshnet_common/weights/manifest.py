"""The files of a checkpoint and what is known of their bytes; pure.

A digest is SHA-256 in lower-case hexadecimal, an empty one is not known. Tensors have digests of
their own, because a Worker fetches only some tensors of a file.
"""

import hashlib
from collections.abc import Mapping
from typing import Self

import msgspec

from meshnet_common.weights.errors import CheckpointError
from meshnet_common.weights.headers import MAX_TENSORS

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
TEXT_FILES = (
    CONFIG_FILE,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "modules.json",
    "1_Pooling/config.json",
)
"""What a Worker needs beside weights; all but the first may be missing."""
MAX_TEXT_FILE_BYTES = 64 << 20
MAX_FILES = 10_000


class BadIndexError(CheckpointError):
    """The index of a checkpoint cannot be used."""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One file; `header_sha256` covers the length and the JSON at its beginning."""

    name: str
    size_bytes: int
    sha256: str = ""
    header_sha256: str = ""
    tensors: Mapping[str, str] = msgspec.field(default_factory=dict)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All files of a checkpoint, by name; `revision` is a hub's commit."""

    files: tuple[FileRecord, ...]
    revision: str = ""

    def file(self, name: str) -> FileRecord | None:
        return next((file for file in self.files if file.name == name), None)

    @property
    def weight_files(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.files if file.name not in TEXT_FILES)

    @property
    def digest(self) -> str:
        """Name these very bytes, as far as they are known."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    def with_digests_of(self, other: Self) -> "Manifest":
        """Take over what a manifest of the same files knows better; raises BadIndexError."""
        return Manifest(
            files=tuple(_merged(file, other.file(file.name)) for file in self.files),
            revision=self.revision,
        )


def read_index(content: bytes) -> tuple[str, ...]:
    """Name the files that an index lists, sorted; raises BadIndexError.

    Names that lead out of the folder are refused, and so is whatever is no safetensors file.
    """
    try:
        weight_map = msgspec.json.decode(content, type=_Index).weight_map
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadIndexError(f"{INDEX_FILE} cannot be read: {error}.") from error
    names = sorted(set(weight_map.values()))
    if not names or len(names) > MAX_FILES or len(weight_map) > MAX_TENSORS:
        raise BadIndexError(f"{INDEX_FILE} names {len(names)} files, {len(weight_map)} tensors.")
    for name in names:
        check_weight_file_name(name)
    return tuple(names)


def check_weight_file_name(name: str) -> None:
    """Raise BadIndexError unless this is the plain name of a safetensors file."""
    is_plain = not set(name) & set("/\\\0") and not name.startswith(".")
    if not is_plain or not name.endswith(".safetensors") or not name.isprintable():
        raise BadIndexError(f"{name!r:.80} is no plain name of a safetensors file.")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _merged(file: FileRecord, known: FileRecord | None) -> FileRecord:
    if known is None:
        return file
    for field in ("size_bytes", "sha256", "header_sha256"):
        one, other = getattr(file, field), getattr(known, field)
        if one and other and one != other:
            raise BadIndexError(f"{file.name} differs: its {field} is {one} here, {other} there.")
    return FileRecord(
        name=file.name,
        size_bytes=file.size_bytes,
        sha256=file.sha256 or known.sha256,
        header_sha256=file.header_sha256 or known.header_sha256,
        tensors=file.tensors or known.tensors,
    )
