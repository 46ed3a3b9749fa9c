"""The door to weights: opens a Model Preset's source, whatever it is.

    a folder here            read where it lies
    a repository of the hub  read from the hub's own cache if it is there whole, else fetched
    http:// or https://      fetched: a mirror of a model's folder

What is fetched lies in a folder of its own for each preset's bytes: another manifest, or another
revision, is another folder.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import aiohttp
import msgspec

from meshnet_common.edge.remote_files import RemoteFiles, RemoteFolder, open_session
from meshnet_common.presets import ModelPreset
from meshnet_common.shard_range import ShardRange
from meshnet_common.weights.errors import CheckpointError
from meshnet_common.weights.manifest import Manifest
from meshnet_worker.weights.description import Description, describe, kept_description
from meshnet_worker.weights.disk_budget import PartStore
from meshnet_worker.weights.errors import WeightsNotFoundError
from meshnet_worker.weights.layout import Layout
from meshnet_worker.weights.local_model import LocalModel
from meshnet_worker.weights.part_files import disk_errors
from meshnet_worker.weights.progress import OnProgress
from meshnet_worker.weights.remote_model import RemoteModel
from meshnet_worker.weights.threads import in_thread

_URL = re.compile(r"https?://\S+")
_ODD = re.compile(r"[^A-Za-z0-9._]+")

Find = Callable[[str], Awaitable[tuple[RemoteFolder, str]]]
"""From a revision, empty for the newest, to where its files are and which one it is."""


@dataclass(frozen=True, slots=True)
class WeightsSettings:
    """Where fetched weights lie, and how many bytes they may take; None is all of the disk."""

    folder: Path
    disk_budget_bytes: int | None = None


class ModelWeights(Protocol):
    """One model's files; `folder` is what the engine reads."""

    @property
    def folder(self) -> Path: ...

    @property
    def is_checked_in_pieces(self) -> bool:
        """Whether no check of some Layers needs the weights of others."""

    async def fetch(self, shard_range: ShardRange, on_progress: OnProgress) -> bool:
        """Have a range's weights here, checked as far as their digests are known.

        Answers whether any of them could be checked; raises a MeshnetError.
        """

    def keep(self, shard_range: ShardRange | None) -> None:
        """Let go of all weights but a range's: they may be evicted."""


class WeightsLibrary:
    """Opens models, and holds the connections to their sources."""

    def __init__(self, settings: WeightsSettings) -> None:
        self._store = PartStore(settings.folder, settings.disk_budget_bytes)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def open(self, preset: ModelPreset) -> ModelWeights:
        """Find a preset's files, fetching its text files and headers; raises a MeshnetError."""
        source = preset.source
        manifest = preset.manifest or Manifest(files=())
        if _URL.fullmatch(source):
            base = f"{source.rstrip('/')}/"

            async def find_mirror(_revision: str) -> tuple[RemoteFolder, str]:
                return RemoteFolder(source, base), ""

            return await self._open_remote(preset, manifest, find_mirror)
        folder = await in_thread(lambda: _find_locally(source, manifest))
        if folder is not None:
            model = LocalModel(folder, manifest, preset.numbered_layers)
            await model.check_text()
            return model

        async def find_repository(revision: str) -> tuple[RemoteFolder, str]:
            return await in_thread(lambda: _find_on_hub(source, revision))

        return await self._open_remote(preset, manifest, find_repository)

    async def _open_remote(
        self, preset: ModelPreset, manifest: Manifest, find: Find
    ) -> RemoteModel:
        folder = self._store.folder / _folder_name(preset.source, manifest)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            kept = await in_thread(partial(kept_description, folder))
        layout = await in_thread(partial(_layout_of, kept, preset.numbered_layers))
        if kept is not None and layout is not None:
            revision = kept.revision
        else:
            place, revision = await find(manifest.revision)
            asked = msgspec.structs.replace(manifest, revision=revision)
            files = RemoteFiles(self._http(), place)
            layout = await describe(files, asked, folder, preset.numbered_layers)

        async def connect() -> RemoteFiles:
            return RemoteFiles(self._http(), (await find(revision))[0])

        return RemoteModel(connect, self._store, folder, layout, manifest)

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session()
        return self._session


def _layout_of(kept: Description | None, layer_count: int | None) -> Layout | None:
    try:
        return Layout(kept.files, layer_count) if kept else None
    except CheckpointError:
        # Whatever happened to it, it is fetched again.
        return None


def _find_locally(source: str, manifest: Manifest) -> Path | None:
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute():
        raise WeightsNotFoundError(f"There is no folder {source}; copy the model there.")
    # Imported late, since most models lie in folders and the hub's client takes a while to load.
    from meshnet_worker.weights.hub import find_in_cache  # noqa: PLC0415 - see above

    return find_in_cache(source, manifest)


def _find_on_hub(repository: str, revision: str) -> tuple[RemoteFolder, str]:
    from meshnet_worker.weights.hub import find_on_hub  # noqa: PLC0415 - see above

    return find_on_hub(repository, revision)


def _folder_name(source: str, manifest: Manifest) -> str:
    digest = hashlib.sha256(f"{source}\n{manifest.digest}".encode()).hexdigest()[:16]
    return f"{_ODD.sub('-', source)[-80:].strip('-.')}-{digest}"
