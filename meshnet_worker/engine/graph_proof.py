"""Whether CUDA graphs compute on this device what plain passes do; tried once, on made-up Layers.

Two equal sides decode the same: one with graphs, the other without. Afterwards outputs must be
equal, and so must the KV of all Sessions: rows of nobody may have touched none of it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.attention import FlatSegment, attend
from meshnet_worker.engine.cuda_capture import Capture, CudaCapture
from meshnet_worker.engine.fixed import FixedRows
from meshnet_worker.engine.graphs import (
    TOLERANCES,
    TRIALS,
    WARM_PASSES,
    Capturing,
    DecodeGraphs,
    is_close,
)
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.pool import BlockPool
from meshnet_worker.engine.step_package import Step
from meshnet_worker.engine_port import Noted

BLOCK_POSITIONS = 256
HIDDEN, HEADS, KV_HEADS, HEAD_SIZE = 96, 4, 2, 64
LAYERS = ShardRange(0, 2)
STEPS = WARM_PASSES + TRIALS + 8
HELD_AT_FIRST = (5, BLOCK_POSITIONS - WARM_PASSES - TRIALS - 4, BLOCK_POSITIONS + 3)
"""Within a block, about to enter the next once there is a graph, and beyond it."""


class _Devices:
    """The devices on which graphs were seen to compute what they should."""

    proved: set[torch.device] = set()  # noqa: RUF012 - one set for the process


def is_proved(device: torch.device) -> bool:
    """Whether graphs may be used on a device."""
    return device in _Devices.proved


def prove_graphs(device: torch.device, note: Callable[[Noted], None]) -> None:
    """Let graphs be used on this CUDA device if they come out right; else say why not."""
    reasons: list[str] = []
    try:
        for dtype in (torch.float32, torch.bfloat16):
            reasons += differences(device, dtype, partial(CudaCapture, device))
    except Exception as error:  # noqa: BLE001 - an old driver or device may fail in any way
        reasons.append(f"{type(error).__name__}: {error}")
    if reasons:
        facts: dict[str, str | int | float] = {"reason": reasons[0]}
        note(Noted("no CUDA graphs on this device", facts, is_warning=True))
    else:
        _Devices.proved.add(device)
    if device.type == "cuda":
        # Before anybody asks how much is free.
        torch.cuda.empty_cache()


@torch.inference_mode()
def differences(
    device: torch.device, dtype: torch.dtype, begin: Callable[[], Capture]
) -> list[str]:
    """What goes wrong in a side that uses what `begin` captures; nothing if all is right."""
    wrong: list[str] = []
    run = _MadeUp(device, dtype)
    graphs = DecodeGraphs(
        Capturing(lambda _range: lambda rows, fixed, _: run(rows, fixed), dtype, begin),
        lambda noted: wrong.append(str(noted.facts["reason"])),
    )
    captured, plain = _Side(run), _Side(run)
    replays = 0
    for step in range(2 * STEPS):
        sessions = (1, len(HELD_AT_FIRST))[step % 2]
        rows = run.rows(sessions)
        segments = captured.next_step(sessions)
        again = partial(run, rows, segments)
        output, was_replayed = graphs.run(Step(LAYERS, rows, segments, is_sampled=False), again)
        replays += was_replayed
        if not is_close(output, run(rows, plain.next_step(sessions)), dtype):
            wrong.append("a replay of made-up Layers computes something else")
    if not replays:
        wrong.append("nothing was captured")
    if not _hold_the_same(captured, plain, dtype):
        wrong.append("a replay of made-up Layers writes where it should not")
    return wrong


class _MadeUp:
    """A pass through two Layers of attention with random weights."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._generator = torch.Generator().manual_seed(0)
        read = (HEADS + 2 * KV_HEADS) * HEAD_SIZE
        self._reads = [self._random(HIDDEN, read) / HIDDEN**0.5 for _ in LAYERS.layers]
        self._writes = [self._random(HEADS * HEAD_SIZE, HIDDEN) / HIDDEN for _ in LAYERS.layers]

    def rows(self, count: int) -> torch.Tensor:
        return self._random(count, HIDDEN)

    def __call__(
        self, rows: torch.Tensor, segments: Sequence[FlatSegment] | FixedRows
    ) -> torch.Tensor:
        for layer, (read, write) in enumerate(zip(self._reads, self._writes, strict=True)):
            parts = (rows @ read).unflatten(1, (-1, HEAD_SIZE)).transpose(0, 1).unsqueeze(0)
            query, key, value = parts.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
            module: Any = SimpleNamespace(layer_idx=layer)
            attended, _ = attend(module, query, key, value, None, flat_segments=segments)
            rows = rows + attended[0].flatten(1) @ write
        return rows

    def _random(self, *shape: int) -> torch.Tensor:
        made = torch.randn(shape, generator=self._generator)
        return made.to(self.device, self.dtype)


class _Side:
    """Sessions whose blocks lie apart, in pools without anything else."""

    def __init__(self, run: _MadeUp) -> None:
        self.pool = BlockPool(BLOCK_POSITIONS, 2 * len(HELD_AT_FIRST), scratch_blocks=1)
        self._kvs = [SessionKv(number, self.pool) for number in range(len(HELD_AT_FIRST))]
        self._held = list(HELD_AT_FIRST)
        # Turn by turn, so that the blocks of a Session lie apart.
        for positions in (BLOCK_POSITIONS, 2 * BLOCK_POSITIONS):
            for kv in self._kvs:
                kv.reserve(positions, LAYERS.layers)
        run(torch.zeros((1, HIDDEN), dtype=run.dtype, device=run.device), self._segments((1,)))
        for tensor in self.tensors():
            # Not zeros, which rows of nobody would write themselves.
            tensor.fill_(1.0)
        generator = torch.Generator().manual_seed(1)
        rows = torch.randn((sum(self._held), HIDDEN), generator=generator)
        run(rows.to(run.device, run.dtype), self._segments(HELD_AT_FIRST))

    def next_step(self, sessions: int) -> list[FlatSegment]:
        """One more position of the first so many Sessions."""
        held, self._held[:sessions] = self._held[:sessions], [h + 1 for h in self._held[:sessions]]
        return [
            FlatSegment(kv, row, 1, position)
            for row, (kv, position) in enumerate(zip(self._kvs[:sessions], held, strict=True))
        ]

    def tensors(self) -> list[torch.Tensor]:
        """Keys and values of all Layers, without the scratch block."""
        pools = [self.pool.layer(layer) for layer in LAYERS.layers]
        return [tensor[: pool.scratch] for pool in pools for tensor in pool.tensors]

    def _segments(self, lengths: Sequence[int]) -> list[FlatSegment]:
        starts = [sum(lengths[:place]) for place in range(len(lengths))]
        return [
            FlatSegment(kv, start, length, 0)
            for kv, start, length in zip(self._kvs, starts, lengths, strict=False)
        ]


def _hold_the_same(side: _Side, other: _Side, dtype: torch.dtype) -> bool:
    pairs = zip(side.tensors(), other.tensors(), strict=True)
    most = TOLERANCES[dtype]
    return all(bool((a - b).abs().max() <= most * b.abs().max()) for a, b in pairs)
