"""Where a Model Preset's files are on this machine: a folder, or the Hugging Face hub's cache."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from meshnet_worker.weights.errors import WeightsNotFoundError

# Weights as safetensors only: a pickle runs code when it is opened.
WANTED_FILES = ("*.safetensors", "*.json", "*.jinja")


def resolve_source(source: str) -> Path:
    """Find a preset's folder, fetching a hub repository once; raises WeightsNotFoundError."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.is_absolute():
        raise WeightsNotFoundError(f"There is no folder {source}; copy the model there.")
    try:
        return Path(snapshot_download(source, allow_patterns=list(WANTED_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise WeightsNotFoundError(f"{source}: {error}.") from error
