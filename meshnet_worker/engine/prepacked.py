"""Dense weights laid out once as the CPU's matrix kernels want them.

A Decode Step reads every weight and computes little, so the layout is what counts: MKL's packed
float32 ran the maps of ten Layers in 6.5 ms where plain ones took 8.5 (one row), and in 13 where
they took 22 (eight rows); oneDNN's packed bfloat16 in 4.4 instead of 8.3 (one row). What these
kernels compute is checked once for every weight.
"""

from collections.abc import Callable

import torch
from torch.nn import functional

from meshnet_worker.engine import opaque

LinearMap = Callable[[torch.Tensor], torch.Tensor]

PACKED_FOR_ROWS = 64
"""MKL lays out for a number of rows; this one was the fastest, or nearly, for 1 to 512."""
CHECKED_ROWS = (1, 3, 17)
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Largest difference to the plain map, relative to its largest output."""


class PrepackedMap:
    """A linear map over a weight in its new layout; takes rows `[..., in]`."""

    def __init__(self, kernel: LinearMap, columns: int) -> None:
        self.kernel = kernel
        self._columns = columns
        self._number = opaque.number_of(self)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute `[..., out]`."""
        if not opaque.is_tracing():
            return self.kernel(rows)
        output: torch.Tensor = torch.ops.meshnet.linear_map(rows, self._number, self._columns)
        return output


def prepacked(weight: torch.Tensor, bias: torch.Tensor | None) -> PrepackedMap | None:
    """Lay a weight `[out, in]` out anew; None where this machine has no kernel that gains.

    The weight itself is no longer needed.
    """
    pack = _PACKS.get(weight.dtype)
    if weight.device.type != "cpu" or pack is None:
        return None
    try:
        kernel = pack(weight, bias)
        is_right = kernel is not None and _is_right(kernel, weight, bias)
    except RuntimeError:
        # Such as bfloat16 on a processor without the instructions that oneDNN wants.
        return None
    return PrepackedMap(kernel, weight.shape[0]) if kernel and is_right else None


def _for_mkl(weight: torch.Tensor, bias: torch.Tensor | None) -> LinearMap | None:
    if not torch.backends.mkl.is_available():
        return None
    packed = torch.ops.mkl._mkl_reorder_linear_weight(  # noqa: SLF001 - torch's own name
        weight.contiguous(), PACKED_FOR_ROWS
    )
    # The kernel reads nothing but the shape of the original: one number stands for all.
    shape = weight.new_zeros(1, 1).expand(weight.shape)
    kernel = torch.ops.mkl._mkl_linear.default  # noqa: SLF001 - torch's own name
    columns = weight.shape[1]

    def run(rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = kernel(rows, packed, shape, bias, rows.numel() // columns)
        return output

    return run


def _for_onednn(weight: torch.Tensor, bias: torch.Tensor | None) -> LinearMap | None:
    if not torch.backends.mkldnn.is_available():
        return None
    packed = torch.ops.mkldnn._reorder_linear_weight(  # noqa: SLF001 - torch's own name
        weight.contiguous(), PACKED_FOR_ROWS
    )
    kernel = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001 - torch's own name

    def run(rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = kernel(rows, packed, bias, "none", [], "")
        return output

    return run


def _is_right(linear_map: LinearMap, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    generator = torch.Generator().manual_seed(0)
    for count in CHECKED_ROWS:
        rows = torch.randn((1, count, weight.shape[1]), generator=generator).to(weight.dtype)
        plain = functional.linear(rows, weight, bias).float()
        difference = (linear_map(rows).float() - plain).abs().max()
        # Not "greater": a difference that is not a number is wrong as well.
        if not difference <= TOLERANCES[weight.dtype] * plain.abs().max():
            return False
    return True


_PACKS: dict[torch.dtype, Callable[[torch.Tensor, torch.Tensor | None], LinearMap | None]] = {
    torch.float32: _for_mkl,
    torch.bfloat16: _for_onednn,
}
