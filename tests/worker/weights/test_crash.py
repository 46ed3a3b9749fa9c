"""A Worker that is killed in the middle of a download, as a real process."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from meshnet_worker.weights import part_files
from tests.weights import LAYER_BYTES, checkpoint, manifest_of, mirror_of, tensors_of
from tests.worker.waiting import SECONDS
from tests.worker.weights.opening import (
    fetch,
    library_in,
    model_at,
    partials_in,
    parts_in,
    tensors_in,
)

FILES = checkpoint()
SYNC_BYTES = 16 << 10
FETCH = f"""
import asyncio, sys
from pathlib import Path
import msgspec
from meshnet_common.presets import ModelPreset
from meshnet_common.shard_range import ShardRange
from meshnet_worker.weights import part_files
from meshnet_worker.weights.library import WeightsLibrary, WeightsSettings

part_files.SYNC_BYTES = {SYNC_BYTES}

def tell(done, total):
    print(done, file=sys.stderr, flush=True)

async def main():
    library = WeightsLibrary(WeightsSettings(Path(sys.argv[1])))
    weights = await library.open(msgspec.json.decode(sys.argv[2], type=ModelPreset))
    await weights.fetch(ShardRange(4, 8), tell)

asyncio.run(main())
"""


async def test_a_download_goes_on_after_its_worker_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_files, "SYNC_BYTES", SYNC_BYTES)
    async with mirror_of(FILES) as mirror:
        model = model_at(mirror.url, manifest_of(FILES))
        async with library_in(tmp_path) as library:
            await library.open(model)
        before = mirror.sent_bytes
        mirror.stall_after_bytes = before + 2 * LAYER_BYTES + LAYER_BYTES // 2
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", FETCH, str(tmp_path), msgspec.json.encode(model).decode()),
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
        )
        assert process.stderr is not None
        async with asyncio.timeout(6 * SECONDS):
            async for line in process.stderr:
                if int(line) > 2 * LAYER_BYTES + LAYER_BYTES // 4:
                    break
            process.kill()
            await process.wait()
        assert parts_in(tmp_path) == {"layer-00004", "layer-00005"}
        assert len(partials_in(tmp_path)) == 2
        mirror.stall_after_bytes = None
        mirror.resumed.set()
        async with library_in(tmp_path) as library:
            weights = await library.open(model)
            await fetch(weights, 4, 8)
        again = mirror.sent_bytes - before - 4 * LAYER_BYTES
    # What was on its way when it died: the buffers of two sockets, and less than one step.
    assert again <= LAYER_BYTES // 2 + SYNC_BYTES
    assert len(tensors_in(weights.folder)) == 8
    assert tensors_in(weights.folder).items() <= tensors_of(FILES).items()
