from collections.abc import Iterable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from meshnet_common.shard_range import ShardRange
from meshnet_worker.kv_budget import KvBudget, PoolShape
from meshnet_worker.kv_pool import KvExhaustedError
from tests.worker.builders import kv_request

BUDGET_BYTES = 1000
BLOCK_POSITIONS = 2


def shape(shard: int = 0, layers: int = 4, position_bytes: int = 5) -> PoolShape:
    return PoolShape(shard, ShardRange(0, layers), position_bytes)


def budget(*shapes: PoolShape, weights: int = 0) -> KvBudget:
    kv = KvBudget(BUDGET_BYTES, BLOCK_POSITIONS)
    kv.resize(weights, shapes)
    return kv


def blocks(kv: KvBudget) -> list[int]:
    return [kv.pools[number].blocks for number in sorted(kv.pools)]


def pool_bytes(kv: KvBudget, shapes: Iterable[PoolShape]) -> int:
    return sum(
        kv.pools[one.shard].blocks * len(one.layers) * BLOCK_POSITIONS * one.position_bytes
        for one in shapes
    )


def test_all_that_weights_leave_is_free_before_the_first_shard() -> None:
    assert budget(weights=300).free_bytes == 700


def test_pools_have_whole_blocks_of_what_weights_leave() -> None:
    kv = budget(shape(), weights=300)
    assert blocks(kv) == [700 // (4 * BLOCK_POSITIONS * 5)]
    assert kv.free_bytes == 680


def test_blocks_that_no_session_can_hold_are_paid_as_well() -> None:
    kv = KvBudget(BUDGET_BYTES, BLOCK_POSITIONS)
    kv.scratch_blocks = 1
    kv.resize(300, [shape()])
    assert blocks(kv) == [700 // (4 * BLOCK_POSITIONS * 5) - 1]


def test_shards_get_equally_many_blocks() -> None:
    assert blocks(budget(shape(0, 4, 5), shape(1, 2, 20))) == [8, 8]


def test_nothing_can_be_held_before_the_device_is_known() -> None:
    kv = KvBudget()
    with pytest.raises(KvExhaustedError):
        kv.reserve(kv_request())


def test_weights_that_outgrow_the_budget_leave_nothing() -> None:
    kv = budget(shape(), weights=BUDGET_BYTES + 5)
    assert (blocks(kv), kv.free_bytes) == ([0], 0)


def test_a_shard_that_comes_takes_only_what_nobody_holds_and_more_as_that_is_freed() -> None:
    first, second = shape(0), shape(1)
    kv = budget(first)
    kv.reserve(kv_request(positions=2 * 20))
    kv.resize(0, [first, second])
    assert blocks(kv) == [20, 5]
    assert not kv.settle()
    kv.release(1)
    assert kv.settle()
    assert blocks(kv) == [12, 12]


def test_what_sessions_hold_is_counted_for_the_layers_after_a_load() -> None:
    kv = budget(shape(layers=2))
    kv.reserve(kv_request(positions=6, layers=(1, 2)))
    assert kv.held_bytes([shape(layers=4)]) == 3 * BLOCK_POSITIONS * 5 * 4


def test_a_shard_that_is_gone_takes_its_sessions_along() -> None:
    kv = budget(shape())
    kv.reserve(kv_request(positions=6))
    kv.resize(0, [])
    kv.release(1)
    assert kv.free_bytes == BUDGET_BYTES


def test_a_model_without_kv_still_has_blocks() -> None:
    assert blocks(budget(shape(position_bytes=0))) == [125]


class KvBudgetMachine(RuleBasedStateMachine):
    """Any order of reservations, releases, loads and drops on two Shards."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = budget()
        self.weights = 0
        self.shapes: dict[int, PoolShape] = {}
        self.holders: dict[int, int] = {}

    @rule(session=st.integers(0, 5), shard=st.integers(0, 1), positions=st.integers(1, 40))
    def reserve(self, session: int, shard: int, positions: int) -> None:
        shard = self.holders.get(session, shard)
        if shard not in self.shapes:
            return
        layers = (1, len(self.shapes[shard].layers))
        try:
            self.kv.reserve(kv_request(session, positions, layers=layers, shard=shard))
        except KvExhaustedError:
            return
        self.holders[session] = shard

    @rule(session=st.integers(0, 5))
    def release(self, session: int) -> None:
        self.kv.release(session)
        self.kv.settle()
        self.holders.pop(session, None)

    @rule(shard=st.integers(0, 1), layers=st.integers(2, 6), weights=st.integers(0, 150))
    def load(self, shard: int, layers: int, weights: int) -> None:
        known = self.shapes.get(shard)
        layers = max(layers, len(known.layers)) if known else layers
        after = {**self.shapes, shard: shape(shard, layers, 5)}
        total = self.weights + weights
        # The keeper's rule: what Sessions hold stays.
        if total + self.kv.held_bytes(after.values()) > BUDGET_BYTES:
            return
        self.shapes, self.weights = after, total
        self.kv.resize(total, after.values())

    @rule(shard=st.integers(0, 1))
    def drop(self, shard: int) -> None:
        if shard in self.holders.values():
            return
        self.shapes.pop(shard, None)
        self.kv.resize(self.weights, self.shapes.values())

    @invariant()
    def no_more_is_promised_than_is_lent(self) -> None:
        assert self.weights + pool_bytes(self.kv, self.shapes.values()) <= BUDGET_BYTES
        assert 0 <= self.kv.free_bytes <= BUDGET_BYTES - self.weights

    @invariant()
    def no_pool_is_smaller_than_its_use(self) -> None:
        assert all(pool.most_used <= pool.blocks for pool in self.kv.pools.values())

    def teardown(self) -> None:
        for session in self.holders:
            self.kv.release(session)
        self.kv.resize(0, [])
        assert self.kv.free_bytes == BUDGET_BYTES


TestKvBudget = KvBudgetMachine.TestCase
