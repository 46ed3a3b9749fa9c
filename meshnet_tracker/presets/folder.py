"""Reads config.json and safetensors headers out of a folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from meshnet_common.weights.errors import ConfigError, HeaderError
from meshnet_common.weights.headers import (
    PREFIX_BYTES,
    TensorEntry,
    header_bytes,
    parse_header,
)
from meshnet_tracker.presets.checkpoint import Checkpoint
from meshnet_tracker.presets.errors import NoCheckpointError

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def read_folder(folder: Path) -> Checkpoint:
    """Read a checkpoint's description; raises a CheckpointError. No weight is touched."""
    root = folder.expanduser().resolve()
    try:
        config = decode_config(_read_config(root))
        tensors = tuple(sorted(_all_tensors(root)))
    except OSError as error:
        raise NoCheckpointError(f"{error.filename}: {error.strerror}.") from error
    return Checkpoint(str(root), config, tensors)


def decode_config(text: bytes) -> dict[str, Any]:
    """Decode a config.json; raises ConfigError."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"It is not a JSON object: {error}.") from error


def no_safetensors(place: str, names: Iterable[str]) -> NoCheckpointError:
    """Say what a place without safetensors lacks; pickled weights are named as such."""
    if any(Path(name).suffix in PICKLE_SUFFIXES for name in names):
        return NoCheckpointError(
            f"{place} has its weights in pickle files, which can run code and are never opened. "
            "Convert them to safetensors."
        )
    return NoCheckpointError(f"{place} has no *.safetensors file.")


def _read_config(root: Path) -> bytes:
    file = root / CONFIG_FILE
    if not file.is_file():
        raise NoCheckpointError(f"{root} has no {CONFIG_FILE}.")
    return file.read_bytes()


def _all_tensors(root: Path) -> Iterable[TensorEntry]:
    for name in _weight_files(root):
        file = root / name
        try:
            yield from _read_header(file)
        except HeaderError as error:
            raise HeaderError(f"{file.name}: {error.detail}") from error


def _weight_files(root: Path) -> list[str]:
    index = root / INDEX_FILE
    if not index.is_file():
        found = sorted(file.name for file in root.glob("*.safetensors"))
        if not found:
            raise no_safetensors(str(root), (file.name for file in root.iterdir()))
        return found
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except msgspec.MsgspecError as error:
        raise NoCheckpointError(f"{INDEX_FILE} cannot be read: {error}.") from error
    named = sorted(set(weight_map.values()))
    for name in named:
        if Path(name).name != name or not (root / name).is_file():
            raise NoCheckpointError(f"{INDEX_FILE} names {name!r:.80}, which is not in {root}.")
    return named


def _read_header(file: Path) -> tuple[TensorEntry, ...]:
    with file.open("rb") as opened:
        file_bytes = file.stat().st_size
        length = header_bytes(opened.read(PREFIX_BYTES), file_bytes)
        return parse_header(opened.read(length), file_bytes)
