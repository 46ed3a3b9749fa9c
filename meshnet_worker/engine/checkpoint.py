"""Reads single tensors out of a folder of safetensors files; a pickle is never opened.

The files are mapped, so only the tensors that are asked for are read from disk.
"""

from collections.abc import Collection
from pathlib import Path
from typing import NoReturn

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from meshnet_common.errors import MeshnetError

INDEX_NAME = "model.safetensors.index.json"


class CheckpointError(MeshnetError):
    """The weights cannot be read."""


class Checkpoint:
    """The tensors of one folder by name; raises CheckpointError when there are none."""

    def __init__(self, folder: str, base_prefix: str) -> None:
        self._folder = Path(folder)
        self._base_prefix = f"{base_prefix}."
        self._files = self._index()

    @property
    def names(self) -> Collection[str]:
        """The names of the stored tensors."""
        return self._files.keys()

    def read(self, name: str) -> torch.Tensor:
        """Read one tensor on the CPU in the checkpoint's own dtype; raises CheckpointError."""
        stored = self.stored_name(name)
        if stored is None:
            raise CheckpointError(f"{self._folder} holds no tensor {name}.")
        try:
            with safe_open(self._files[stored], framework="pt", device="cpu") as file:
                tensor: torch.Tensor = file.get_tensor(stored)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self._files[stored]}: {error}.") from error
        return tensor

    def holds(self, name: str) -> bool:
        return self.stored_name(name) is not None

    def packed_bytes(self, _name: str) -> int | None:
        """Nothing is kept packed."""
        return None

    def packed(self, name: str) -> NoReturn:
        """Never asked for, since nothing is kept packed."""
        raise AssertionError(name)

    def stored_name(self, name: str) -> str | None:
        """Find a parameter's name on disk: some checkpoints leave the base model's prefix out."""
        bare = name.removeprefix(self._base_prefix)
        candidates = (name, bare, f"{self._base_prefix}{name}")
        return next((known for known in candidates if known in self._files), None)

    def _index(self) -> dict[str, Path]:
        index = self._folder / INDEX_NAME
        if index.exists():
            return self._listed(index)
        files: dict[str, Path] = {}
        for path in sorted(self._folder.glob("*.safetensors")):
            try:
                with safe_open(path, framework="pt") as file:
                    files.update(dict.fromkeys(file.keys(), path))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path}: {error}.") from error
        if not files:
            raise CheckpointError(f"{self._folder} holds no safetensors file.")
        return files

    def _listed(self, index: Path) -> dict[str, Path]:
        try:
            weight_map = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
        except (msgspec.DecodeError, OSError) as error:
            raise CheckpointError(f"{index}: {error}.") from error
        # Only the name counts: an index must not lead out of its folder.
        return {name: self._folder / Path(file).name for name, file in weight_map.items()}


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
