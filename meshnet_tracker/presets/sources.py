"""Finds a checkpoint by what an Operator typed: a folder, a mirror, or a repository of the hub."""

import re
from pathlib import Path

from meshnet_tracker.presets.checkpoint import Checkpoint
from meshnet_tracker.presets.errors import NoCheckpointError
from meshnet_tracker.presets.folder import read_folder

_URL = re.compile(r"https?://[^\s/]+/\S+")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def read_checkpoint(source: str) -> Checkpoint:
    """Read config and headers; blocks. Raises a CheckpointError or SourceError."""
    if _URL.fullmatch(source):
        # Imported late, as the hub's client below.
        from meshnet_tracker.presets.mirror import read_mirror  # noqa: PLC0415 - see above

        return read_mirror(source)
    folder = Path(source).expanduser()
    if folder.is_dir():
        return read_folder(folder)
    if folder.exists():
        raise NoCheckpointError(f"{source} is a file; name the folder that it lies in.")
    if not _REPOSITORY.fullmatch(source):
        raise NoCheckpointError(
            f"{source} is neither a folder here nor a repository ORG/NAME nor http(s)://HOST/PATH/."
        )
    # Imported late, since most checkpoints lie in folders and the client takes a second to load.
    from meshnet_tracker.presets.hub import read_repository  # noqa: PLC0415 - see above

    return read_repository(source)


def default_name(source: str) -> str:
    """Name a preset after the last part of where it comes from."""
    folder = Path(source).expanduser()
    return folder.resolve().name if folder.is_dir() else source.rstrip("/").rsplit("/", 1)[-1]
