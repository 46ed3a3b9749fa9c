import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.pool import BlockPool

POSITIONS = 12
LAYERS = (0, 7)


def new_kv(positions: int) -> SessionKv:
    kv = SessionKv(5, BlockPool(block_positions=4, blocks=8))
    kv.reserve(positions, LAYERS)
    return kv


def rows(*values: int, heads: int = 2, size: int = 3) -> torch.Tensor:
    """`[heads, tokens, size]` where each position repeats its value."""
    return torch.tensor(values, dtype=torch.float32).reshape(1, -1, 1).expand(heads, -1, size)


def values_of(tensor: torch.Tensor) -> list[int]:
    assert bool((tensor == tensor[:1, :, :1]).all())
    return [int(value) for value in tensor[0, :, 0]]


def test_what_was_written_comes_back_with_what_is_new() -> None:
    kv = new_kv(POSITIONS)
    kv.extend(0, 0, rows(1, 2), rows(11, 12))
    keys, values = kv.extend(0, 2, rows(3), rows(13))
    assert (values_of(keys), values_of(values)) == ([1, 2, 3], [11, 12, 13])


def test_layers_do_not_share_their_keys() -> None:
    kv = new_kv(POSITIONS)
    kv.extend(0, 0, rows(1), rows(1))
    keys, _ = kv.extend(7, 0, rows(2), rows(2))
    assert values_of(keys) == [2]


def test_keys_and_values_may_differ_in_size() -> None:
    kv = new_kv(POSITIONS)
    keys, values = kv.extend(0, 0, rows(1, size=4), rows(2, size=6))
    assert (keys.shape, values.shape) == ((2, 1, 4), (2, 1, 6))


@pytest.mark.parametrize(("position", "tokens"), [(POSITIONS, 1), (POSITIONS - 1, 2), (0, 13)])
def test_writing_beyond_the_reservation_is_refused(position: int, tokens: int) -> None:
    kv = new_kv(POSITIONS)
    new = rows(*range(tokens))
    with pytest.raises(ValueError, match="over the 12 reserved"):
        kv.extend(0, position, new, new)


def test_a_larger_reservation_keeps_what_is_held() -> None:
    kv = new_kv(2)
    kv.extend(0, 0, rows(1, 2), rows(1, 2))
    kv.reserve(4, LAYERS)
    keys, _ = kv.extend(0, 2, rows(3, 4), rows(3, 4))
    assert values_of(keys) == [1, 2, 3, 4]


def test_a_smaller_reservation_takes_nothing_away() -> None:
    kv = new_kv(4)
    kv.reserve(2, LAYERS)
    keys, _ = kv.extend(0, 0, rows(1, 2, 3, 4), rows(1, 2, 3, 4))
    assert values_of(keys) == [1, 2, 3, 4]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4), st.integers(0, 12)), max_size=20))
def test_positions_hold_what_was_written_last(writes: list[tuple[int, int, int]]) -> None:
    kv = new_kv(0)
    held: list[int] = []
    for number, (wanted, tokens, reserved) in enumerate(writes):
        position = min(wanted, len(held))
        end = position + tokens
        kv.reserve(max(reserved, end), LAYERS)
        new = rows(*[number] * tokens)
        held[position:] = [number] * tokens
        keys, values = kv.extend(0, position, new, new)
        assert values_of(keys) == values_of(values) == held


def test_a_session_holds_blocks_in_its_own_layers_only() -> None:
    pool = BlockPool(block_positions=4, blocks=8)
    kv = SessionKv(5, pool)
    kv.reserve(5, (2, 3))
    assert pool.free_blocks() == {2: 6, 3: 6}


def test_a_session_that_ends_gives_every_block_back() -> None:
    pool = BlockPool(block_positions=4, blocks=8)
    kv = SessionKv(5, pool)
    kv.reserve(20, (2, 3))
    kv.release()
    assert pool.free_blocks() == {2: 8, 3: 8}


def test_kv_alone_takes_what_it_was_made_for() -> None:
    kv = SessionKv.alone(3, (1,))
    keys, _ = kv.extend(1, 0, rows(1, 2, 3), rows(1, 2, 3))
    assert values_of(keys) == [1, 2, 3]
