"""What a remote checkpoint is made of: its text files and headers, fetched once and kept.

With them on disk, Layers that were fetched before are loaded again without asking anybody.
"""

import hashlib
import os
from functools import partial
from pathlib import Path

import msgspec

from meshnet_common.edge.remote_files import RemoteFiles
from meshnet_common.weights.manifest import (
    CONFIG_FILE,
    INDEX_FILE,
    MAX_TEXT_FILE_BYTES,
    SINGLE_FILE,
    TEXT_FILES,
    Manifest,
    check_weight_file_name,
    read_index,
)
from meshnet_worker.weights.errors import WeightsNotFoundError, mismatch
from meshnet_worker.weights.layout import Layout, SourceFile, check_start
from meshnet_worker.weights.part_files import disk_errors
from meshnet_worker.weights.threads import in_thread

STATE_FILE = "source.msgpack"


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The weight files of a checkpoint; `revision` is a hub's commit."""

    revision: str
    files: tuple[SourceFile, ...]


def kept_description(folder: Path) -> Description | None:
    """Read what an earlier `describe` has kept; None where there is nothing whole. Blocks."""
    try:
        content = (folder / STATE_FILE).read_bytes()
        return msgspec.msgpack.decode(content, type=Description)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


async def describe(
    remote: RemoteFiles, manifest: Manifest, folder: Path, layer_count: int | None
) -> Layout:
    """Fetch text files and headers into a folder; `manifest` names the revision that is asked.

    Raises SourceError, CheckpointError or a WeightsError; what is there afterwards is whole.
    """
    for name in TEXT_FILES:
        await _fetch_text(remote, manifest, folder, name)
    if not (folder / CONFIG_FILE).exists():
        raise WeightsNotFoundError(f"{remote.folder.label} has no {CONFIG_FILE}.")
    names = manifest.weight_files or await _listed_files(remote)
    files = tuple([await _source_file(remote, manifest, name) for name in names])
    layout = await in_thread(partial(Layout, files, layer_count))
    place_file(folder / INDEX_FILE, layout.index())
    # Last: where this file is, the others are.
    place_file(
        folder / STATE_FILE,
        msgspec.msgpack.encode(Description(revision=manifest.revision, files=files)),
    )
    return layout


def place_file(file: Path, content: bytes) -> None:
    """Write a small file that is there whole or not at all; raises a WeightsError."""
    with disk_errors(file):
        file.parent.mkdir(exist_ok=True)
        draft = file.with_name(f"{file.name}.{os.getpid()}.draft")
        with draft.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)


async def _fetch_text(remote: RemoteFiles, manifest: Manifest, folder: Path, name: str) -> None:
    record = manifest.file(name)
    content = await remote.read_small(name, MAX_TEXT_FILE_BYTES)
    if content is None:
        if record is not None:
            raise WeightsNotFoundError(f"{remote.folder.label} has no {name} any more.")
        return
    found = hashlib.sha256(content).hexdigest()
    if record is not None and record.sha256 and record.sha256 != found:
        raise mismatch(f"{remote.folder.label}: {name}", record.sha256, found)
    place_file(folder / name, content)


async def _listed_files(remote: RemoteFiles) -> tuple[str, ...]:
    index = await remote.read_small(INDEX_FILE, MAX_TEXT_FILE_BYTES)
    return (SINGLE_FILE,) if index is None else read_index(index)


async def _source_file(remote: RemoteFiles, manifest: Manifest, name: str) -> SourceFile:
    check_weight_file_name(name)
    found = await remote.read_header(name)
    file = SourceFile(name=name, size_bytes=found.file_bytes, start=found.content, etag=found.etag)
    record = manifest.file(name)
    if record is not None:
        check_start(file, record)
    return file
