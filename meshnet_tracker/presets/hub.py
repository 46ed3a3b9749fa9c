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

from meshnet_common.weights.errors import HeaderError
from meshnet_common.weights.headers import TensorEntry
from meshnet_tracker.presets.checkpoint import Checkpoint
from meshnet_tracker.presets.errors import NoCheckpointError
from meshnet_tracker.presets.folder import CONFIG_FILE, decode_config, no_safetensors

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
    config = Path(hub.hf_hub_download(repository, CONFIG_FILE)).read_bytes()
    try:
        metadata = hub.get_safetensors_metadata(repository)
    except NotASafetensorsRepoError as error:
        raise no_safetensors(repository, hub.list_repo_files(repository)) from error
    tensors = [
        TensorEntry(name, str(tensor.dtype), tuple(tensor.shape))
        for file in metadata.files_metadata.values()
        for name, tensor in file.tensors.items()
    ]
    return Checkpoint(repository, decode_config(config), tuple(sorted(tensors)))


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]
