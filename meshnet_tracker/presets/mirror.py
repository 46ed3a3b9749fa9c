"""Reads config.json and safetensors headers of an HTTP mirror of a model's folder, by ranges."""

import asyncio
import hashlib

from meshnet_common.edge.remote_files import RemoteFiles, RemoteFolder, open_session
from meshnet_common.weights.headers import PREFIX_BYTES, TensorEntry, parse_header
from meshnet_common.weights.manifest import (
    CONFIG_FILE,
    INDEX_FILE,
    MAX_TEXT_FILE_BYTES,
    SINGLE_FILE,
    TEXT_FILES,
    FileRecord,
    Manifest,
    read_index,
)
from meshnet_tracker.presets.checkpoint import Checkpoint
from meshnet_tracker.presets.errors import NoCheckpointError
from meshnet_tracker.presets.folder import decode_config


def read_mirror(url: str) -> Checkpoint:
    """Read a checkpoint's description; blocks. Raises a CheckpointError or SourceError."""
    return asyncio.run(_read(url.rstrip("/")))


async def _read(url: str) -> Checkpoint:
    async with open_session() as session:
        remote = RemoteFiles(session, RemoteFolder(url, f"{url}/"))
        texts = {name: await remote.read_small(name, MAX_TEXT_FILE_BYTES) for name in TEXT_FILES}
        config = texts[CONFIG_FILE]
        if config is None:
            raise NoCheckpointError(f"{url} has no {CONFIG_FILE}.")
        tensors: list[TensorEntry] = []
        records = [_text_record(name, text) for name, text in texts.items() if text is not None]
        for name in await _weight_files(remote):
            header = await remote.read_header(name)
            tensors += parse_header(header.content[PREFIX_BYTES:], header.file_bytes)
            digest = hashlib.sha256(header.content).hexdigest()
            size = header.file_bytes
            records.append(FileRecord(name=name, size_bytes=size, header_sha256=digest))
    manifest = Manifest(files=tuple(records))
    return Checkpoint(url, decode_config(config), tuple(sorted(tensors)), manifest)


async def _weight_files(remote: RemoteFiles) -> tuple[str, ...]:
    index = await remote.read_small(INDEX_FILE, MAX_TEXT_FILE_BYTES)
    return (SINGLE_FILE,) if index is None else read_index(index)


def _text_record(name: str, text: bytes) -> FileRecord:
    digest = hashlib.sha256(text).hexdigest()
    return FileRecord(name=name, size_bytes=len(text), sha256=digest)
