"""Attention over the paged pool in one kernel, on CUDA: FlashAttention with a block table.

torch's `varlen_attn` (Dao, "FlashAttention-2", 2023; paged as in vLLM) takes the rows of all
Sessions of a Batch together, where `scaled_dot_product_attention` needs a call for each.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Protocol

import torch

from meshnet_worker.engine.pool import LayerPool

MAX_HEAD_SIZE = 256
DTYPES = frozenset({torch.float16, torch.bfloat16})


class _Devices:
    """The devices on which the kernel was seen to compute what it should."""

    proved: set[torch.device] = set()  # noqa: RUF012 - one set for the process


def prove(device: torch.device, attends: Callable[[], bool]) -> None:
    """Let the kernel be used on a device if `attends`, which uses it there, comes out right."""
    _Devices.proved.add(device)
    try:
        is_right = attends()
    except Exception:  # noqa: BLE001 - an old driver or device may fail in any way
        is_right = False
    if not is_right:
        _Devices.proved.discard(device)


def is_able(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the kernel takes heads of this kind: 16-bit, equal sizes, on a proved device."""
    if query.device not in _Devices.proved or query.dtype not in DTYPES:
        return False
    size = query.shape[3]
    return size == value.shape[3] and size <= MAX_HEAD_SIZE and size % 8 == 0


def placed_in(pool: LayerPool, segments: Sequence[Any], device: torch.device) -> "Placed":
    """Where the rows lie in this Layer; made once for Layers in which they lie alike."""
    tables = tuple(tuple(pool.blocks_of(segment.kv.session)) for segment in segments)
    made: dict[Any, Placed] = segments[0].placed
    if tables not in made:
        made[tables] = Placed(pool, segments, device)
    return made[tables]


class Placed:
    """Where the rows of a Batch lie in the blocks of one Layer; tensors for the kernel."""

    def __init__(self, pool: LayerPool, segments: Sequence[Any], device: torch.device) -> None:
        held = [segment.position + segment.tokens for segment in segments]
        tables = [pool.blocks_of(segment.kv.session) for segment in segments]
        size = pool.block_positions
        slots = [
            table[position // size] * size + position % size
            for segment, table in zip(segments, tables, strict=True)
            for position in range(segment.position, segment.position + segment.tokens)
        ]
        longest = max(len(table) for table in tables)
        padded = [table + [0] * (longest - len(table)) for table in tables]
        ends = list(accumulate((segment.tokens for segment in segments), initial=0))
        self.slots = torch.tensor(slots, device=device)
        self.tables = torch.tensor(padded, dtype=torch.int32, device=device)
        self.query_ends = torch.tensor(ends, dtype=torch.int32, device=device)
        key_ends = list(accumulate(held, initial=0))
        self.key_ends = torch.tensor(key_ends, dtype=torch.int32, device=device)
        self.held = torch.tensor(held, dtype=torch.int32, device=device)
        self.most_rows = max(segment.tokens for segment in segments)
        self.most_held = max(held)


class Lying(Protocol):
    """What the kernel is told of where rows lie; tensors of 32-bit numbers on the device."""

    query_ends: torch.Tensor
    key_ends: torch.Tensor
    held: torch.Tensor
    tables: torch.Tensor
    most_rows: int
    most_held: int


def attend_together(
    query: torch.Tensor,
    pool: LayerPool,
    placed: Lying,
    window: int | None,
    scaling: float | None,
) -> torch.Tensor:
    """Attend `[1, heads, rows, size]` over what `pool` holds; returns `[1, rows, heads, size]`.

    The rows' own keys and values are in the pool already.
    """
    from torch.nn.attention.varlen import varlen_attn

    keys, values = pool.tensors
    output = varlen_attn(
        query[0].transpose(0, 1),
        keys,
        values,
        placed.query_ends,
        placed.key_ends,
        placed.most_rows,
        placed.most_held,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != keys.shape[2],
        seqused_k=placed.held,
        block_table=placed.tables,
        # One split: a row then comes out the same whoever shares its Batch.
        num_splits=1,
    )
    assert isinstance(output, torch.Tensor)
    return output.unsqueeze(0)
