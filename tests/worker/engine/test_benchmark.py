import pytest
import torch

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import benchmark
from meshnet_worker.engine.benchmark import (
    MEASURED_PASSES,
    LayerSpeeds,
    ShardBenchmark,
    made_up_speeds,
    memory_bytes_per_second,
)
from meshnet_worker.engine.shard import Shard, ShardSource
from tests.worker.conftest import ModelFolders
from tests.worker.engine.splitting import CPU
from tests.worker.models import LAYERS


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DECODE_SECONDS", "PREFILL_SECONDS", "COPY_SECONDS"):
        monkeypatch.setattr(benchmark, name, 0.02)


def shard_of(folder: object, shard_range: ShardRange) -> Shard:
    shard = Shard(ShardSource(str(folder), torch.float32, CPU))
    for _ in shard.load(shard_range):
        pass
    return shard


def test_a_prompt_runs_faster_than_single_tokens() -> None:
    speeds = made_up_speeds(CPU)
    assert 0 < speeds.decode < speeds.prefill


def test_the_bandwidth_of_memory_is_that_of_memory() -> None:
    assert 1e8 < memory_bytes_per_second(CPU) < 1e13


@pytest.mark.parametrize(
    "shard_range",
    [ShardRange(0, LAYERS), ShardRange(0, 1), ShardRange(1, 3), ShardRange(3, 4)],
    ids=str,
)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_loaded_layers_are_measured_one_pass_at_a_time(
    name: str, shard_range: ShardRange, model_folders: ModelFolders
) -> None:
    measuring = ShardBenchmark(shard_of(model_folders(name), shard_range), CPU)
    steps = 1
    while (speeds := measuring.step()) is None:
        steps += 1
    assert steps == MEASURED_PASSES + 2
    assert speeds.decode > 0
    assert speeds.prefill > 0


def test_layers_that_are_gone_are_not_measured(model_folders: ModelFolders) -> None:
    shard = shard_of(model_folders("llama"), ShardRange(0, 2))
    shard.drop(ShardRange(0, 2))
    assert ShardBenchmark(shard, CPU).step() == LayerSpeeds(0.0, 0.0)
