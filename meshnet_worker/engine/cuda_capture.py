"""Capturing a pass into a CUDA graph, and leaving torch in order where that fails.

Nothing in a pass may wait for the device, and all its addresses must stay what they were: see
"CUDA Graphs" in torch's notes on CUDA semantics.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import torch

Run = Callable[[], torch.Tensor]
Capture = Callable[[Run], Run]
"""Takes a pass over fixed tensors, gives what repeats it."""


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for the process, since each stream keeps memory of the matrix kernels."""
    return torch.cuda.Stream(device)


class CudaCapture:
    """Captures passes on a CUDA device into graphs that share one memory pool.

    They may share it since they run one after the other, and each one's output is copied before
    the next begins.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _side_stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """Capture a pass; raises whatever it raises, and what torch raises when it cannot be."""
        now = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(now)
        # The outer block brings the current stream back; where a capture fails, torch's own does
        # not.
        with torch.cuda.stream(self._stream):
            self._rehearse(run)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    output = run()
            except BaseException:
                self._end_by_hand()
                raise
        now.wait_stream(self._stream)

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay

    @staticmethod
    def _rehearse(run: Run) -> None:
        """Run once for what is only made at first, and once to see that nothing waits.

        A capture that fails half-way leaves torch's allocator in disorder; this fails before.
        """
        run()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def _end_by_hand(self) -> None:
        """Tell torch's allocator that the capture is over, or it never frees memory again."""
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(  # noqa: SLF001 - torch's
                torch.cuda.current_device(), self._pool
            )
