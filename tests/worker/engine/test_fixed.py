"""Attention in the form that can be captured, here on the CPU and uncaptured."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_worker.engine import fixed as module
from meshnet_worker.engine import varlen
from meshnet_worker.engine.attention import FlatSegment, attend
from meshnet_worker.engine.fixed import FixedRows, TooDeepError
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.padding import Row, Size, pad, size_for
from meshnet_worker.engine.pool import BlockPool, LayerPool

HEADS, KV_HEADS, SIZE, VALUE_SIZE = 4, 2, 8, 6
BLOCK_POSITIONS = 4
BLOCKS = 24
CPU = torch.device("cpu")
LAYER: Any = SimpleNamespace(layer_idx=0)
LENGTHS = st.lists(st.integers(1, 4 * BLOCK_POSITIONS), min_size=1, max_size=5)


class Side:
    """Sessions of these lengths, whose last position is to be run together."""

    def __init__(self, lengths: list[int], value_size: int = VALUE_SIZE) -> None:
        self._generator = torch.Generator().manual_seed(len(lengths))
        self._value_size = value_size
        self.lengths = lengths
        self.blocks = BlockPool(BLOCK_POSITIONS, BLOCKS, scratch_blocks=1)
        self.kvs = [SessionKv(number, self.blocks) for number in range(len(lengths))]
        # Block by block in turn, so that the blocks of a Session lie apart.
        for positions in range(BLOCK_POSITIONS, 5 * BLOCK_POSITIONS, BLOCK_POSITIONS):
            for kv, length in zip(self.kvs, lengths, strict=True):
                kv.reserve(min(positions, length), (0,))
        self._fill()
        self.step = self.random(len(lengths))

    @property
    def pool(self) -> LayerPool:
        return self.blocks.layer(0)

    def random(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        kinds = ((HEADS, SIZE), (KV_HEADS, SIZE), (KV_HEADS, self._value_size))
        query, key, value = (
            torch.randn((1, heads, rows, size), generator=self._generator) for heads, size in kinds
        )
        return query, key, value

    def _fill(self) -> None:
        for place, (kv, length) in enumerate(zip(self.kvs, self.lengths, strict=True)):
            _, key, value = self.random(length)
            kv.extend(0, 0, key[0], value[0])
            if not place:
                # What nobody has written yet may be anything.
                for tensor in self.pool.tensors:
                    tensor.fill_(float("nan"))
                kv.extend(0, 0, key[0], value[0])

    def plainly(self, **look: Any) -> torch.Tensor:
        segments = [
            FlatSegment(kv, row, 1, length - 1)
            for row, (kv, length) in enumerate(zip(self.kvs, self.lengths, strict=True))
        ]
        return attend(LAYER, *self.step, None, flat_segments=segments, **look)[0]

    def padded(self, **look: Any) -> torch.Tensor:
        """The same through padded rows, whose own numbers are random."""
        rows = [
            Row(length - 1, self.pool.blocks_of(kv.session))
            for kv, length in zip(self.kvs, self.lengths, strict=True)
        ]
        size = size_for(rows)
        assert size is not None
        assert self.pool.scratch is not None
        fixed = FixedRows(size, CPU)
        fixed.put(pad(rows, size, BLOCK_POSITIONS, self.pool.scratch))
        nobodys = self.random(size.width - len(rows))
        query, key, value = (
            torch.cat(pair, dim=2) for pair in zip(self.step, nobodys, strict=True)
        )
        with fixed.over({0: self.pool}):
            fixed.begin()
            output, _ = attend(LAYER, query, key, value, None, flat_segments=fixed, **look)
        assert output.shape[1] == size.width
        return output[:, : len(rows)]

    def held(self) -> list[torch.Tensor]:
        """What all blocks but the scratch block hold."""
        return [tensor[: self.pool.scratch].clone() for tensor in self.pool.tensors]


@given(
    lengths=LENGTHS,
    window=st.none() | st.integers(1, 20),
    softcap=st.none() | st.just(2.0),
    has_sinks=st.booleans(),
    scaling=st.none() | st.just(0.7),
)
@settings(max_examples=40, deadline=None)
def test_padded_rows_change_nothing_for_the_others(
    lengths: list[int],
    window: int | None,
    softcap: float | None,
    has_sinks: bool,
    scaling: float | None,
) -> None:
    look: dict[str, Any] = {"sliding_window": window, "softcap": softcap, "scaling": scaling}
    look |= {"s_aux": torch.arange(HEADS) / HEADS} if has_sinks else {}
    side = Side(lengths)
    output = side.padded(**look)
    held = side.held()
    torch.testing.assert_close(output, side.plainly(**look), rtol=0, atol=1e-5)
    # The plain pass writes the same, and padded rows wrote nothing else.
    for before, after in zip(held, side.held(), strict=True):
        assert torch.equal(before.nan_to_num(-7.0), after.nan_to_num(-7.0))


def test_padded_rows_write_to_the_scratch_block_alone() -> None:
    side = Side([5, 3, 9])
    before = side.held()
    side.padded()
    changed = [
        (~torch.isclose(a, b, equal_nan=True)).flatten(2).any(2).nonzero().tolist()
        for a, b in zip(side.held(), before, strict=True)
    ]
    last = [
        [side.pool.blocks_of(kv.session)[-1], (length - 1) % BLOCK_POSITIONS]
        for kv, length in zip(side.kvs, side.lengths, strict=True)
    ]
    assert changed == [sorted(last)] * 2


def test_a_pass_that_would_gather_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_GATHERED", 2 * BLOCK_POSITIONS)
    Side([3, 4]).padded()
    with pytest.raises(TooDeepError):
        Side([3, 4, 1]).padded()


def test_neither_pools_nor_what_a_pass_made_outlives_it() -> None:
    side = Side([3])
    fixed = FixedRows(Size(1, 1), CPU)
    with fixed.over({0: side.pool}):
        fixed.begin()
        attend(LAYER, *side.step, None, flat_segments=fixed)
    assert (fixed._pools, fixed._places) == ({}, None)


def paged(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *ends: Any, **more: Any
) -> torch.Tensor:
    """What the kernel computes, written out from its documentation; one row for each Session."""
    query_ends, key_ends, most_rows, most_held = ends
    held, tables = more["seqused_k"], more["block_table"]
    assert query_ends.tolist() == list(range(len(query) + 1))
    assert key_ends.diff().tolist() == held.tolist()
    assert most_rows == 1
    assert most_held >= int(held.max())
    left = more["window_size"][0]
    outputs = []
    for row, table, count in zip(query, tables.tolist(), held.tolist(), strict=True):
        seen = slice(0 if left < 0 else max(0, count - left - 1), count)
        own_keys, own_values = (
            tensor[table].flatten(0, 1)[seen].transpose(0, 1)[None] for tensor in (keys, values)
        )
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                row[None, :, None], own_keys, own_values, scale=more["scale"], enable_gqa=True
            )[0, :, 0]
        )
    return torch.stack(outputs)


@given(lengths=LENGTHS, window=st.none() | st.integers(1, 20))
@settings(max_examples=20, deadline=None)
def test_the_kernel_is_told_of_padded_rows_as_of_sessions(
    lengths: list[int], window: int | None
) -> None:
    side = Side(lengths, value_size=SIZE)
    right = side.plainly(sliding_window=window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen, "is_able", lambda *_: True)
        patch.setattr("torch.nn.attention.varlen.varlen_attn", paged)
        output = side.padded(sliding_window=window)
    torch.testing.assert_close(output, right, rtol=0, atol=1e-5)
