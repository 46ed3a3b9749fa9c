"""Reads config.json and safetensors headers out of a folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from meshnet_common.edge.local_files import read_file_start
from meshnet_common.weights.errors import ConfigError, HeaderError
from meshnet_common.weights.headers import PREFIX_BYTES, TensorEntry, parse_header
from meshnet_common.weights.manifest import (
    CONFIG_FILE,
    INDEX_FILE,
    read_index,
)
from meshnet_tracker.presets.checkpoint import Checkpoint
from meshnet_tracker.presets.errors import NoCheckpointError

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})


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
    for name in weight_files(root):
        yield from _read_header(root / name)


def weight_files(root: Path) -> list[str]:
    """Name the safetensors files that count; raises CheckpointError, OSError."""
    index = root / INDEX_FILE
    if not index.is_file():
        found = sorted(file.name for file in root.glob("*.safetensors"))
        if not found:
            raise no_safetensors(str(root), (file.name for file in root.iterdir()))
        return found
    named = read_index(index.read_bytes())
    for name in named:
        if not (root / name).is_file():
            raise NoCheckpointError(f"{INDEX_FILE} names {name!r:.80}, which is not in {root}.")
    return list(named)


def _read_header(file: Path) -> tuple[TensorEntry, ...]:
    start = read_file_start(file)
    try:
        return parse_header(start[PREFIX_BYTES:], file.stat().st_size)
    except HeaderError as error:
        raise HeaderError(f"{file.name}: {error.detail}") from error
