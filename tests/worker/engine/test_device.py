import psutil
import pytest
import torch

from meshnet_worker.engine import benchmark
from meshnet_worker.engine.device import choose_device, probe

NEEDS_NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@NEEDS_NO_CUDA
def test_auto_is_the_cpu_where_there_is_nothing_better() -> None:
    assert choose_device("auto") == torch.device("cpu")


@NEEDS_CUDA
def test_auto_is_the_first_cuda_device() -> None:
    assert choose_device("auto") == torch.device("cuda", 0)


def test_a_device_may_be_named() -> None:
    assert choose_device("cpu") == torch.device("cpu")


@NEEDS_NO_CUDA
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="cuda:1 was asked for"):
        choose_device("cuda:1")


def test_the_cpu_offers_the_hosts_memory_and_its_measured_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DECODE_SECONDS", "PREFILL_SECONDS", "COPY_SECONDS"):
        monkeypatch.setattr(benchmark, name, 0.05)
    probed = probe(torch.device("cpu"))
    assert (probed.device, probed.name) == ("cpu", "CPU")
    assert 0 < probed.free_bytes <= probed.total_bytes == psutil.virtual_memory().total
    assert probed.tokens_per_second > 0
    assert probed.scratch_blocks == 0
    assert probed.benchmark_model == benchmark.MODEL
    assert probed.prefill_tokens_per_second > probed.tokens_per_second
    assert probed.memory_bytes_per_second > 1e8
    assert 0.15 <= probed.seconds < 5
