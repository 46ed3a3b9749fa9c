"""The capture itself needs a device (`bench/gpu_check.py`); here is what surrounds it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from meshnet_worker.engine import cuda_capture
from meshnet_worker.engine.cuda_capture import CudaCapture


class Stream:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def wait_stream(self, _other: "Stream") -> None:
        self._log.append("waits")


class FakeCuda:
    """Stands for torch.cuda, and keeps in a log what it was asked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        now = Stream(self.log)
        for name, fake in {
            "Stream": lambda _device: Stream(self.log),
            "graph_pool_handle": lambda: (0, 1),
            "current_stream": lambda _device: now,
            "current_device": lambda: 0,
            "stream": lambda _stream: self._block("stream"),
            "graph": lambda _graph, **_named: self._block("capture"),
            "CUDAGraph": lambda: self,
            "set_sync_debug_mode": self.log.append,
        }.items():
            patch.setattr(torch.cuda, name, fake)
        patch.setattr(
            torch._C,
            "_cuda_endAllocateToPool",
            lambda *_given: self.log.append("ended by hand"),
            raising=False,
        )

    def replay(self) -> None:
        self.log.append("replay")

    @contextmanager
    def _block(self, name: str) -> Iterator[None]:
        self.log.append(name)
        try:
            yield
        finally:
            self.log.append(f"no {name}")

    def run(self) -> torch.Tensor:
        self.log.append("run")
        return torch.ones(1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    cuda_capture._side_stream.cache_clear()
    yield FakeCuda(monkeypatch)
    cuda_capture._side_stream.cache_clear()


def captured(run: Any) -> Any:
    return CudaCapture(torch.device("cuda", 0))(run)


def test_a_pass_is_rehearsed_on_the_side_and_nothing_in_it_may_wait(cuda: FakeCuda) -> None:
    replay = captured(cuda.run)
    rehearsal = ["run", "error", "run", "default"]
    capture = ["capture", "run", "no capture"]
    assert cuda.log == ["waits", "stream", *rehearsal, *capture, "no stream", "waits"]
    replay()
    assert cuda.log[-1] == "replay"


def test_a_pass_that_waits_for_the_device_is_not_captured_at_all(cuda: FakeCuda) -> None:
    def waits() -> torch.Tensor:
        if cuda.log[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return cuda.run()

    with pytest.raises(RuntimeError, match="synchronizing"):
        captured(waits)
    assert "capture" not in cuda.log
    assert cuda.log[-2:] == ["default", "no stream"]


def test_a_capture_that_fails_leaves_stream_and_allocator_as_they_were(cuda: FakeCuda) -> None:
    def fails() -> torch.Tensor:
        if cuda.log[-1] == "capture":
            raise RuntimeError("operation not permitted when stream is capturing")
        return cuda.run()

    with pytest.raises(RuntimeError, match="not permitted"):
        captured(fails)
    assert cuda.log[-3:] == ["no capture", "ended by hand", "no stream"]
