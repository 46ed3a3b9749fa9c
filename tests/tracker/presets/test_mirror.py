import asyncio
import json

import pytest

from meshnet_common.edge.remote_files import FIRST_BYTES, SourceFileMissingError
from meshnet_common.errors import MeshnetError
from meshnet_common.weights.errors import CheckpointError, HeaderError
from meshnet_common.weights.manifest import INDEX_FILE
from meshnet_tracker.presets.errors import NoCheckpointError
from meshnet_tracker.presets.mirror import read_mirror
from tests.tracker.presets.checkpoints import LLAMA_CONFIG
from tests.weights import checkpoint, manifest_of, mirror_of, tensor_sizes

FILES = {**checkpoint(), "config.json": json.dumps(LLAMA_CONFIG).encode()}


@pytest.mark.parametrize("count", [1, 3])
async def test_a_mirror_is_read_by_ranges_and_without_its_weights(count: int) -> None:
    files = {**checkpoint(files=count), "config.json": FILES["config.json"]}
    async with mirror_of(files) as mirror:
        found = await asyncio.to_thread(read_mirror, f"{mirror.url}/")
        assert len(mirror.weight_requests) == count
        assert all(wanted == f"bytes=0-{FIRST_BYTES - 1}" for wanted in mirror.weight_requests)
    assert (found.source, found.config) == (mirror.url, LLAMA_CONFIG)
    assert {tensor.name for tensor in found.tensors} == tensor_sizes().keys()
    assert found.manifest is not None
    assert {f.name: f.header_sha256 for f in found.manifest.files} == {
        f.name: f.header_sha256 for f in manifest_of(files).files
    }


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({}, NoCheckpointError),
        ({"config.json": b"{}"}, SourceFileMissingError),
        ({"config.json": b"{}", INDEX_FILE: b"{}"}, CheckpointError),
        ({"config.json": b"{}", "model.safetensors": bytes(100)}, HeaderError),
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, SourceFileMissingError),
    ],
    ids=["nothing", "no weights", "bad index", "bad header", "a pickle"],
)
async def test_a_mirror_that_cannot_be_served_is_refused(
    files: dict[str, bytes], error: type[MeshnetError]
) -> None:
    async with mirror_of(files) as mirror:
        with pytest.raises(error):
            await asyncio.to_thread(read_mirror, mirror.url)
