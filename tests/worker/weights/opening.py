"""Opens a mirror's model as a Worker does, and looks at what lies on disk."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from meshnet_common.presets import ModelPreset
from meshnet_common.shard_range import ShardRange
from meshnet_common.weights.headers import PREFIX_BYTES, header_bytes, place_tensors
from meshnet_common.weights.manifest import Manifest
from meshnet_worker.weights.library import ModelWeights, WeightsLibrary, WeightsSettings
from tests.common.builders import preset, variant
from tests.weights import LAYERS


def model_at(source: str, manifest: Manifest | None = None, layers: int = LAYERS) -> ModelPreset:
    return msgspec.structs.replace(preset(variant(layers), source=source), manifest=manifest)


@asynccontextmanager
async def library_in(
    folder: Path, budget_bytes: int | None = None
) -> AsyncIterator[WeightsLibrary]:
    library = WeightsLibrary(WeightsSettings(folder, budget_bytes))
    try:
        yield library
    finally:
        await library.close()


async def fetch(weights: ModelWeights, start: int, end: int) -> list[tuple[int, int]]:
    """Fetch a range; returns what was heard of its progress."""
    heard: list[tuple[int, int]] = []
    await weights.fetch(ShardRange(start, end), lambda done, total: heard.append((done, total)))
    return heard


def parts_in(folder: Path) -> set[str]:
    return {file.name.removesuffix(".safetensors") for file in folder.glob("**/*.safetensors")}


def partials_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("**/*.partial"))


def tensors_in(folder: Path) -> dict[str, bytes]:
    """All tensors of the whole parts in a model's folder."""
    found = {}
    for file in folder.glob("**/*.safetensors"):
        content = file.read_bytes()
        length = header_bytes(content[:PREFIX_BYTES], len(content))
        for placed in place_tensors(content[8 : 8 + length], len(content)):
            found[placed.entry.name] = content[placed.start : placed.end]
    return found
