"""The Hugging Face hub: its cache where that is complete, else where its files can be fetched.

Tokens, mirrors (HF_ENDPOINT) and offline mode are huggingface_hub's own. Everything here blocks.
"""

from pathlib import Path

from huggingface_hub import get_hf_file_metadata, hf_hub_url, is_offline_mode, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined] # HTTPError is passed through
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined] # documented, not listed
    build_hf_headers,
)

from meshnet_common.edge.remote_files import RemoteFolder
from meshnet_common.weights.errors import CheckpointError
from meshnet_common.weights.manifest import (
    CONFIG_FILE,
    INDEX_FILE,
    SINGLE_FILE,
    Manifest,
    read_index,
)
from meshnet_worker.weights.errors import WeightsNotFoundError


def find_in_cache(repository: str, manifest: Manifest) -> Path | None:
    """Find a repository whose snapshot the hub's client has fetched whole."""
    revision = manifest.revision or None
    try:
        folder = Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        return None
    try:
        names = _weight_files(folder, manifest)
    except CheckpointError:
        return None
    is_whole = all((folder / name).is_file() for name in (CONFIG_FILE, *names))
    return folder if is_whole and names else None


def find_on_hub(repository: str, revision: str) -> tuple[RemoteFolder, str]:
    """Find where a repository's files are and at which commit; raises WeightsNotFoundError.

    An empty revision is the newest one.
    """
    try:
        if is_offline_mode():
            raise OfflineModeIsEnabled("HF_HUB_OFFLINE is set")
        asked = hf_hub_url(repository, CONFIG_FILE, revision=revision or None)
        commit = get_hf_file_metadata(asked).commit_hash or revision or "main"
        base = hf_hub_url(repository, CONFIG_FILE, revision=commit).removesuffix(CONFIG_FILE)
    except (HfHubHTTPError, HTTPError, HFValidationError, OSError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise WeightsNotFoundError(
            f"{repository}: {lines[0]:.300}. HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE decide "
            "which hub is asked, and how."
        ) from error
    headers = {name: value for name, value in build_hf_headers().items() if value}
    return RemoteFolder(repository, base, headers), commit


def _weight_files(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    if manifest.weight_files:
        return manifest.weight_files
    index = folder / INDEX_FILE
    return read_index(index.read_bytes()) if index.is_file() else (SINGLE_FILE,)
