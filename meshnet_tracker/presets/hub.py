"""Reads config.json and safetensors headers out of a model hub, by ranges; no weight is fetched."""

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import (  # type: ignore[attr-defined] # HTTPError is passed through
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    NotASafetensorsRepoError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    SafetensorsParsingError,
)
from huggingface_hub.hf_api import RepoSibling

from meshnet_common.edge.local_files import sha256_of
from meshnet_common.weights.errors import HeaderError
from meshnet_common.weights.headers import TensorEntry
from meshnet_common.weights.manifest import CONFIG_FILE, TEXT_FILES, FileRecord, Manifest
from meshnet_tracker.presets.checkpoint import Checkpoint
from meshnet_tracker.presets.errors import NoCheckpointError
from meshnet_tracker.presets.folder import decode_config, no_safetensors

_SETTINGS = " HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE decide which hub is asked, and how."


def read_repository(repository: str) -> Checkpoint:
    """Read a checkpoint's description from the hub; raises a CheckpointError."""
    try:
        return _read(HfApi(), repository)
    except SafetensorsParsingError as error:
        raise HeaderError(f"{repository}: {_first_line(error)}") from error
    except GatedRepoError as error:
        raise NoCheckpointError(f"{repository} is gated; accept its terms.{_SETTINGS}") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise NoCheckpointError(f"The hub has no {repository}.{_SETTINGS}") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise NoCheckpointError(f"{repository}: the hub is out of reach.{_SETTINGS}") from error
    except EntryNotFoundError as error:
        raise NoCheckpointError(f"{repository} has no {CONFIG_FILE}.") from error
    except (HfHubHTTPError, HTTPError) as error:
        raise NoCheckpointError(f"{repository}: {_first_line(error)}{_SETTINGS}") from error


def _read(hub: HfApi, repository: str) -> Checkpoint:
    info = hub.model_info(repository, files_metadata=True)
    revision = info.sha
    config = Path(hub.hf_hub_download(repository, CONFIG_FILE, revision=revision)).read_bytes()
    try:
        metadata = hub.get_safetensors_metadata(repository, revision=revision)
    except NotASafetensorsRepoError as error:
        raise no_safetensors(repository, hub.list_repo_files(repository)) from error
    tensors = [
        TensorEntry(name, str(tensor.dtype), tuple(tensor.shape))
        for file in metadata.files_metadata.values()
        for name, tensor in file.tensors.items()
    ]
    files = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    records = [_weight_record(name, files.get(name)) for name in sorted(metadata.files_metadata)]
    records += [
        _text_record(name, Path(hub.hf_hub_download(repository, name, revision=revision)))
        for name in TEXT_FILES
        if name in files
    ]
    manifest = Manifest(files=tuple(records), revision=revision or "")
    return Checkpoint(repository, decode_config(config), tuple(sorted(tensors)), manifest)


def _weight_record(name: str, known: RepoSibling | None) -> FileRecord:
    """Take over what the hub says of a file: big ones are known by their SHA-256."""
    size = (known.size if known else None) or 0
    sha256 = known.lfs.sha256 if known and known.lfs else ""
    return FileRecord(name=name, size_bytes=size, sha256=sha256)


def _text_record(name: str, file: Path) -> FileRecord:
    return FileRecord(name=name, size_bytes=file.stat().st_size, sha256=sha256_of(file))


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]
