"""The one attention function of every architecture.

transformers lets a program register an attention function and hands unknown keyword arguments of
`forward` down to it. A model's own layers run on one flattened Batch `[1, total tokens, hidden]`;
this function writes each Session's new keys and values in place and attends within it only. No
mask from the model, no Cache object, no file per architecture.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from meshnet_worker.engine import opaque, varlen
from meshnet_worker.engine.fixed import FixedRows
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.look import Look, written_out
from meshnet_worker.engine.pool import BlockPool

NAME = "meshnet"
PROOF_BLOCK_POSITIONS = 256
PROOF_TOLERANCE = 0.05


@dataclass(slots=True)
class FlatSegment:
    """Rows [row, row + tokens) of the flattened Batch continue one Session at `position`."""

    kv: SessionKv
    row: int
    tokens: int
    position: int
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
    placed: dict[Any, varlen.Placed] = field(default_factory=dict)
    """Where the rows of the whole Batch lie, kept by its first segment."""

    def mask(self, window: int | None, device: torch.device) -> torch.Tensor:
        """Causal mask `[tokens, position + tokens]`, True where a row may look; made once."""
        if window not in self.masks:
            held = self.position + self.tokens
            rows = torch.arange(self.position, held, device=device).unsqueeze(1)
            columns = torch.arange(held, device=device).unsqueeze(0)
            allowed = columns <= rows
            if window is not None:
                allowed &= columns > rows - window
            self.masks[window] = allowed
        return self.masks[window]


def attend(  # noqa: PLR0913 - the signature is transformers'
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - made anew, of positions and window
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    flat_segments: Sequence[FlatSegment] | FixedRows = (),
    **_unused: object,
) -> tuple[torch.Tensor, None]:
    """Attend within each Session of a flattened Batch.

    `query` is `[1, heads, rows, head size]`, `key` and `value` `[1, KV heads, rows, their size]`;
    returns `[1, rows, heads, value size]`.
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # every attention module numbers itself
    look = Look(scaling, sliding_window, softcap, s_aux)
    if opaque.is_tracing():
        return torch.ops.meshnet.attend(query, key, value, layer, *look), None
    return _attend_all(query, key, value, layer, look, flat_segments), None


def _attend_all(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layer: int,
    look: Look,
    segments: Sequence[FlatSegment] | FixedRows,
) -> torch.Tensor:
    if isinstance(segments, FixedRows):
        return segments.attend(query, key, value, layer, look)
    if segments and look.is_plain and varlen.is_able(query, value):
        pool = segments[0].kv.in_layer(layer)
        placed = varlen.placed_in(pool, segments, query.device)
        pool.write_at(placed.slots, key[0], value[0])
        return varlen.attend_together(query, pool, placed, look.window, look.scaling)
    return _attend_apart(query, key, value, layer, look, segments)


def _attend_apart(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layer: int,
    look: Look,
    segments: Sequence[FlatSegment],
) -> torch.Tensor:
    rows = query.shape[2]
    if len(segments) == 1 and segments[0].tokens == rows:
        # One Session alone, the case that a single stream waits for, is spared every copy.
        segment = segments[0]
        keys, values = segment.kv.extend(layer, segment.position, key[0], value[0])
        return _attend_one(query[0], keys, values, segment, look).unsqueeze(0)
    # Zeros, since a compiled pass has rows that belong to nobody.
    output = query.new_zeros((1, rows, query.shape[1], value.shape[3]))
    for segment in segments:
        own = slice(segment.row, segment.row + segment.tokens)
        keys, values = segment.kv.extend(layer, segment.position, key[0, :, own], value[0, :, own])
        output[0, own] = _attend_one(query[0, :, own], keys, values, segment, look)
    return output


def _attend_compiled(  # noqa: PLR0913 - the operator's signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layer: int,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    look = Look(scaling, window, softcap, sinks)
    return _attend_all(query, key, value, layer, look, opaque.segments_now())


def _attend_one(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    segment: FlatSegment,
    look: Look,
) -> torch.Tensor:
    """Attend `[heads, tokens, size]` over `[KV heads, held, size]`.

    Returns `[tokens, heads, value size]`.
    """
    window = look.window if look.window is not None and look.window < keys.shape[1] else None
    if not look.is_plain:
        mask = segment.mask(window, query.device)
        return written_out(query, keys, values, mask, look).transpose(0, 1)
    if segment.tokens == 1:
        return _attend_single(query, keys, values, window, look.scaling)
    attended = scaled_dot_product_attention(
        query.unsqueeze(0),
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=segment.mask(window, query.device),
        scale=look.scaling,
        enable_gqa=query.shape[0] != keys.shape[0],
    )
    return attended[0].transpose(0, 1)


def _attend_single(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    window: int | None,
    scaling: float | None,
) -> torch.Tensor:
    # A single row needs no mask, so the query heads that share a KV head become its rows: each
    # key and value is then read once instead of once per query head.
    if window is not None:
        keys, values = keys[:, -window:], values[:, -window:]
    kv_heads = keys.shape[0]
    grouped = query.reshape(1, kv_heads, query.shape[0] // kv_heads, query.shape[2])
    attended = scaled_dot_product_attention(
        grouped, keys.unsqueeze(0), values.unsqueeze(0), scale=scaling
    )
    return attended.reshape(1, query.shape[0], values.shape[2])


def prove_kernel(device: torch.device) -> None:
    """Use one kernel for all Sessions of a Batch on this CUDA device, if it is there and right."""
    varlen.prove(device, partial(_is_right_together, device))


def _is_right_together(device: torch.device) -> bool:
    """Compare over blocks that lie apart, with chunks, single rows and windows."""
    generator = torch.Generator().manual_seed(0)
    pool = BlockPool(PROOF_BLOCK_POSITIONS, 6)
    sessions = [SessionKv(session, pool) for session in range(3)]
    # Turn by turn, so that the blocks of a Session lie apart.
    for positions in (PROOF_BLOCK_POSITIONS, 2 * PROOF_BLOCK_POSITIONS):
        for kv in sessions:
            kv.reserve(positions, (0,))
    chunks = (PROOF_BLOCK_POSITIONS + 40, 5, 1)
    for window in (None, 64):
        look = Look(None, window, None, None)
        position = 0
        for tokens in chunks:
            segments = [
                FlatSegment(kv, place * tokens, tokens, position)
                for place, kv in enumerate(sessions)
            ]
            query, key, value = (
                torch.randn((1, heads, len(sessions) * tokens, 64), generator=generator).to(
                    device, torch.bfloat16
                )
                for heads in (4, 2, 2)
            )
            together = _attend_all(query, key, value, 0, look, segments)
            apart = _attend_apart(query, key, value, 0, look, segments)
            if not (together - apart).abs().max() <= PROOF_TOLERANCE:
                return False
            position += tokens
    return True


AttentionInterface.register(NAME, attend)
opaque.LIBRARY.impl("attend", _attend_compiled, "CPU")
