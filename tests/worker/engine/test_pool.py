import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from meshnet_worker.engine.pool import BlockPool, LayerPool

BLOCK_POSITIONS = 4
BLOCKS = 12
SESSION = st.integers(0, 3)
SIZE = st.integers(1, 20)


def rows(*values: int) -> torch.Tensor:
    """`[2 heads, tokens, 3]` where each position repeats its value."""
    return torch.tensor(values, dtype=torch.float32).reshape(1, -1, 1).expand(2, -1, 3)


def values_of(tensor: torch.Tensor) -> list[int]:
    assert bool((tensor == tensor[:1, :, :1]).all())
    return [int(value) for value in tensor[0, :, 0]]


def pool_of(blocks: int) -> LayerPool:
    return LayerPool(blocks, BLOCK_POSITIONS)


def test_a_session_holds_as_many_blocks_as_its_positions_need() -> None:
    pool = pool_of(3)
    pool.reserve(1, BLOCK_POSITIONS + 1)
    assert (len(pool.blocks_of(1)), pool.free_blocks) == (2, 1)


def test_no_session_ever_holds_the_scratch_block() -> None:
    pool = LayerPool(2, BLOCK_POSITIONS, scratch_blocks=1)
    pool.reserve(1, 2 * BLOCK_POSITIONS)
    with pytest.raises(ValueError, match="0 are free"):
        pool.reserve(2, 1)
    assert pool.scratch not in pool.blocks_of(1)
    assert pool_of(2).scratch is None


def test_the_scratch_block_lies_behind_all_others_whatever_the_size() -> None:
    pool = LayerPool(2, BLOCK_POSITIONS, scratch_blocks=1)
    pool.reserve(1, BLOCK_POSITIONS)
    assert pool.address == (0, 0, 0)
    pool.write(1, 0, rows(5), rows(6))
    for blocks in (2, 5, 1):
        pool.resize(blocks)
        assert pool.scratch == blocks
        assert len(pool.tensors[0]) == blocks + 1
        assert pool.address[2] == (blocks + 1) * BLOCK_POSITIONS


def test_what_is_written_at_slots_is_read_there() -> None:
    pool = LayerPool(2, BLOCK_POSITIONS, scratch_blocks=1)
    slots = torch.tensor([9, 2])
    pool.write_at(slots, rows(5, 6), rows(7, 8))
    keys, values = pool.read_at(slots.flip(0))
    assert (values_of(keys.transpose(0, 1)), values_of(values.transpose(0, 1))) == ([6, 5], [8, 7])


def test_a_pool_that_lacks_blocks_gives_none() -> None:
    pool = pool_of(2)
    pool.reserve(1, BLOCK_POSITIONS)
    with pytest.raises(ValueError, match="2 KV blocks are needed, 1 are free"):
        pool.reserve(2, 2 * BLOCK_POSITIONS)
    assert pool.free_blocks == 1


def test_keys_and_values_are_read_where_they_lie() -> None:
    pool = pool_of(2)
    pool.reserve(1, 8)
    pool.write(1, 0, rows(1, 2), rows(11, 12))
    keys, values = pool.write(1, 2, rows(3), rows(13))
    assert (values_of(keys), values_of(values)) == ([1, 2, 3], [11, 12, 13])
    all_keys, all_values = pool.tensors
    assert keys.data_ptr() == all_keys[pool.blocks_of(1)[0]].data_ptr()
    assert values.data_ptr() == all_values[pool.blocks_of(1)[0]].data_ptr()


def test_a_session_that_cannot_grow_in_place_moves_to_a_longer_run() -> None:
    pool = pool_of(6)
    pool.reserve(1, BLOCK_POSITIONS)
    pool.write(1, 0, rows(1, 2, 3, 4), rows(1, 2, 3, 4))
    pool.reserve(2, BLOCK_POSITIONS)
    pool.reserve(1, 2 * BLOCK_POSITIONS)
    blocks = pool.blocks_of(1)
    assert blocks == [blocks[0], blocks[0] + 1]
    assert values_of(pool.write(1, 4, rows(5), rows(5))[0]) == [1, 2, 3, 4, 5]


def test_blocks_that_lie_apart_read_like_any_other() -> None:
    pool = pool_of(4)
    for session in range(4):
        pool.reserve(session, BLOCK_POSITIONS)
    pool.release(0)
    pool.release(2)
    pool.reserve(9, 2 * BLOCK_POSITIONS)
    pool.write(9, 0, rows(1, 2, 3), rows(1, 2, 3))
    keys, values = pool.write(9, 3, rows(4, 5), rows(14, 15))
    assert values_of(keys) == [1, 2, 3, 4, 5]
    assert values_of(values) == [1, 2, 3, 14, 15]


def test_a_pool_never_shrinks_below_what_is_held() -> None:
    pool = pool_of(3)
    pool.reserve(1, 2 * BLOCK_POSITIONS)
    with pytest.raises(ValueError, match="2 KV blocks are held, and only 1"):
        pool.resize(1)
    assert len(pool.blocks_of(1)) == 2


class PoolMachine(RuleBasedStateMachine):
    """Every Session reads what it wrote, whatever the others do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BLOCKS
        self.pool = pool_of(BLOCKS)
        self.written: dict[int, list[int]] = {}
        self.reserved: dict[int, int] = {}
        self.writes = 0

    @property
    def held(self) -> int:
        return sum(-(-positions // BLOCK_POSITIONS) for positions in self.reserved.values())

    @rule(session=SESSION, positions=SIZE)
    def reserve(self, session: int, positions: int) -> None:
        wanted = max(positions, self.reserved.get(session, 0))
        before = -(-self.reserved.get(session, 0) // BLOCK_POSITIONS)
        if -(-wanted // BLOCK_POSITIONS) - before > self.blocks - self.held:
            with pytest.raises(ValueError, match="KV blocks are needed"):
                self.pool.reserve(session, positions)
            return
        self.pool.reserve(session, positions)
        self.reserved[session] = wanted
        self.written.setdefault(session, [])

    @rule(session=SESSION, wanted_start=SIZE, tokens=SIZE)
    def write(self, session: int, wanted_start: int, tokens: int) -> None:
        if session not in self.reserved:
            return
        start = min(len(self.written[session]), wanted_start)
        tokens = min(tokens, self.reserved[session] - start)
        if tokens < 1:
            return
        self.writes += 1
        new = [self.writes * 100 + token for token in range(tokens)]
        self.written[session] = [*self.written[session][:start], *new]
        keys, values = self.pool.write(session, start, rows(*new), rows(*new))
        assert values_of(keys) == values_of(values) == self.written[session]

    @rule(session=SESSION)
    def release(self, session: int) -> None:
        self.pool.release(session)
        self.reserved.pop(session, None)
        self.written.pop(session, None)

    @rule(blocks=SIZE)
    def resize(self, blocks: int) -> None:
        if blocks >= self.held:
            self.pool.resize(blocks)
            self.blocks = blocks

    @invariant()
    def no_block_is_lost(self) -> None:
        assert self.pool.free_blocks == self.blocks - self.held


TestPoolMachine = PoolMachine.TestCase


def test_layers_have_blocks_of_their_own() -> None:
    pool = BlockPool(BLOCK_POSITIONS, 2)
    pool.layer(3).reserve(1, BLOCK_POSITIONS)
    assert pool.free_blocks() == {3: 1}
    pool.layer(4)
    assert pool.free_blocks() == {3: 1, 4: 2}


def test_a_layer_that_nobody_uses_gives_its_memory_back_on_a_new_size() -> None:
    pool = BlockPool(BLOCK_POSITIONS, 2)
    pool.layer(3).reserve(1, BLOCK_POSITIONS)
    pool.layer(4)
    pool.resize(5)
    assert pool.free_blocks() == {3: 4}
