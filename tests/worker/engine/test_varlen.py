"""The kernel itself runs on CUDA only (`bench/gpu_check.py`); here is what it is given."""

import pytest
import torch

from meshnet_worker.engine import varlen
from meshnet_worker.engine.attention import FlatSegment, prove_kernel
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.pool import BlockPool

BLOCK_POSITIONS = 4
CPU = torch.device("cpu")


def segments_apart() -> tuple[BlockPool, list[FlatSegment]]:
    """Two Sessions, the first of which holds blocks that lie apart."""
    pool = BlockPool(BLOCK_POSITIONS, 4)
    kept = [SessionKv(session, pool) for session in range(4)]
    for kv in kept:
        kv.reserve(BLOCK_POSITIONS, (0,))
    kept[0].release()
    kept[2].release()
    apart = SessionKv(9, pool)
    apart.reserve(2 * BLOCK_POSITIONS, (0,))
    return pool, [FlatSegment(apart, 0, 3, 3), FlatSegment(kept[1], 3, 1, 2)]


def test_rows_are_written_where_the_blocks_of_their_session_lie() -> None:
    pool, segments = segments_apart()
    layer = pool.layer(0)
    placed = varlen.Placed(layer, segments, CPU)
    rows = torch.arange(4.0).reshape(1, 4, 1).expand(2, 4, 3)
    layer.write_at(placed.slots, rows, -rows)
    keys, values = segments[0].kv.extend(0, 6, rows[:, :1], rows[:, :1])
    assert keys[0, 3:6, 0].tolist() == [0.0, 1.0, 2.0]
    assert values[0, 3:6, 0].tolist() == [0.0, -1.0, -2.0]
    assert segments[1].kv.extend(0, 3, rows[:, :1], rows[:, :1])[0][0, 2, 0] == 3.0


def test_the_kernel_is_told_who_holds_what() -> None:
    pool, segments = segments_apart()
    placed = varlen.Placed(pool.layer(0), segments, CPU)
    first, second = (pool.layer(0).blocks_of(segment.kv.session) for segment in segments)
    assert placed.tables.tolist() == [first, [*second, 0]]
    assert placed.query_ends.tolist() == [0, 3, 4]
    assert placed.held.tolist() == [6, 3]
    assert placed.key_ends.tolist() == [0, 6, 9]
    assert (placed.most_rows, placed.most_held) == (3, 6)


QUERY = torch.zeros((1, 2, 3, 64), dtype=torch.bfloat16)


def test_a_device_that_nobody_has_tried_has_no_kernel() -> None:
    assert not varlen.is_able(QUERY, QUERY)


def test_a_kernel_that_fails_or_is_wrong_is_not_used() -> None:
    def fails() -> bool:
        raise RuntimeError("no such kernel")

    for attends in (fails, lambda: False):
        varlen.prove(CPU, attends)
        assert not varlen.is_able(QUERY, QUERY)


def test_a_proved_kernel_takes_16_bit_heads_of_equal_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(varlen._Devices, "proved", set())
    varlen.prove(CPU, lambda: True)
    assert varlen.is_able(QUERY, QUERY)
    assert not varlen.is_able(QUERY, QUERY[..., :32])
    assert not varlen.is_able(QUERY.float(), QUERY.float())


def test_the_proof_fails_where_torch_has_no_cuda() -> None:
    prove_kernel(CPU)
    assert not varlen.is_able(QUERY, QUERY)
