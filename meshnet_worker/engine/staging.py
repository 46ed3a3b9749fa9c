"""Hidden states on their way from the socket to the device.

Pageable memory is copied to a CUDA device through a hidden buffer, while the engine waits; pinned
memory is read by the device itself, while the engine prepares the pass.
"""

import torch


class Staging:
    """One pinned buffer, made anew only when a larger Batch comes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def put(self, raw: bytearray, dtype: torch.dtype) -> torch.Tensor:
        """Put bytes on the device as numbers of this dtype, in one row."""
        if self._device.type != "cuda":
            return torch.frombuffer(raw, dtype=dtype)
        if self._buffer.numel() < len(raw):
            self._buffer = torch.empty(len(raw), dtype=torch.uint8, pin_memory=True)
        else:
            # The copy of the Batch before may not have begun yet.
            torch.cuda.current_stream(self._device).synchronize()
        staged = self._buffer[: len(raw)]
        staged.copy_(torch.frombuffer(raw, dtype=torch.uint8))
        return staged.view(dtype).to(self._device, non_blocking=True)
