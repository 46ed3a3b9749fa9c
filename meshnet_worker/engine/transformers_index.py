"""Remembers what can be imported from transformers, between one start of an engine and the next.

As it is imported, transformers reads the text of all its 1,700 modules, twice, to learn which names
they export: a fifth of the time until an engine runs. What it learned is kept in a file beside
what we cache, and holds for that one installation. Without the file, or where anything about
transformers is otherwise than expected, it reads as ever.
"""

import importlib.abc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import msgspec

SCANNER = "transformers.utils.import_utils"
SCAN = "create_import_structure_from_path"

Index = dict[Any, Any]
"""Names by module, by what a module needs (a frozenset), by folder."""


class _Remembered(msgspec.Struct):
    """An index with the installation that it is of."""

    installation: tuple[str, str, int]
    """Its release, where it lies, and when its list of models was changed last."""
    index: list[Any]


def remember_index(folder: Path) -> None:
    """Let transformers, which must not be imported yet, use and keep its index in this folder."""
    if not any(name == "transformers" or name.startswith("transformers.") for name in sys.modules):
        sys.meta_path.insert(0, _Finder(folder / "transformers.json"))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module once, and changes the function in it that reads everything."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != SCANNER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._file)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, file: Path) -> None:
        self._loader = loader
        self._file = file

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if hasattr(module, SCAN):
            setattr(module, SCAN, remembering(getattr(module, SCAN), self._file))
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader


def remembering(scan: Callable[[Any], Index], file: Path) -> Callable[[Any], Index]:
    """Answer for the folder `models`, however it is named, what the file or the first scan says."""
    known: dict[Path, Index] = {}

    def remembered(path: str | os.PathLike[str]) -> Index:
        folder = Path(path)
        folder = folder.parent if folder.suffix == ".py" else folder
        if folder.name != "models":
            return scan(path)
        if folder not in known:
            installation = (_release(), str(folder), folder.stat().st_mtime_ns)
            read = _read(file, installation)
            known[folder] = scan(path) if read is None else read
            if read is None:
                _write(file, _Remembered(installation, _listed(known[folder])))
        return known[folder]

    return remembered


def _release() -> str:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return ""


def _read(file: Path, installation: tuple[str, str, int]) -> Index | None:
    try:
        remembered = msgspec.json.decode(file.read_bytes(), type=_Remembered)
        return _unlisted(remembered.index) if remembered.installation == installation else None
    except (OSError, msgspec.DecodeError, TypeError, ValueError):
        return None


def _write(file: Path, remembered: _Remembered) -> None:
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=file.parent) as folder:
            # Another engine may start now, and must not see half of it.
            unfinished = Path(folder) / file.name
            unfinished.write_bytes(msgspec.json.encode(remembered))
            unfinished.replace(file)


def _listed(index: Index) -> list[Any]:
    """Make pairs of a dict, since JSON has only texts as keys, and no sets."""
    return [
        [sorted(key) if isinstance(key, frozenset) else key, _listed_value(value)]
        for key, value in index.items()
    ]


def _listed_value(value: Index | set[str]) -> list[Any]:
    return _listed(value) if isinstance(value, dict) else sorted(value)


def _unlisted(pairs: list[Any]) -> Index:
    return {
        frozenset(key) if isinstance(key, list) else key: _unlisted_value(value)
        for key, value in pairs
    }


def _unlisted_value(value: list[Any]) -> Index | set[str]:
    # An empty one is a folder without modules: no module exports nothing.
    is_set = any(isinstance(one, str) for one in value)
    return set(value) if is_set else _unlisted(value)
