import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from meshnet_worker.kv_budget import KvBudget, KvExhaustedError

BUDGET_BYTES = 1000


def test_all_that_weights_leave_is_free() -> None:
    kv = KvBudget(BUDGET_BYTES)
    kv.set_weight_bytes(300)
    assert kv.free_bytes == 700


def test_nothing_is_free_before_the_device_is_known() -> None:
    with pytest.raises(KvExhaustedError):
        KvBudget().reserve(1, 1)


def test_a_reservation_may_take_the_last_byte_and_no_more() -> None:
    kv = KvBudget(BUDGET_BYTES)
    kv.reserve(1, BUDGET_BYTES)
    with pytest.raises(KvExhaustedError, match="needs 1 bytes more and 0 are free"):
        kv.reserve(2, 1)


def test_a_larger_reservation_takes_only_the_difference() -> None:
    kv = KvBudget(BUDGET_BYTES)
    kv.reserve(1, 600)
    kv.reserve(1, 1000)
    assert kv.free_bytes == 0


def test_a_refused_reservation_keeps_what_was_held() -> None:
    kv = KvBudget(BUDGET_BYTES)
    kv.reserve(1, 600)
    with pytest.raises(KvExhaustedError):
        kv.reserve(1, 1001)
    assert kv.free_bytes == 400


def test_weights_that_outgrow_the_budget_leave_nothing_free() -> None:
    kv = KvBudget(BUDGET_BYTES)
    kv.set_weight_bytes(BUDGET_BYTES + 5)
    assert kv.free_bytes == 0


class KvBudgetMachine(RuleBasedStateMachine):
    """Any order of reservations and releases."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KvBudget(BUDGET_BYTES)
        self.held: dict[int, int] = {}
        self.weights = 0

    @rule(session=st.integers(0, 3), size=st.integers(0, 600))
    def reserve(self, session: int, size: int) -> None:
        free = BUDGET_BYTES - self.weights - sum(self.held.values())
        wanted = max(size, self.held.get(session, 0))
        try:
            self.kv.reserve(session, size)
        except KvExhaustedError:
            assert size - self.held.get(session, 0) > free
        else:
            self.held[session] = wanted

    @rule(session=st.integers(0, 3))
    def release(self, session: int) -> None:
        self.kv.release(session)
        self.held.pop(session, None)

    @rule(weights=st.integers(0, 300))
    def load_or_drop(self, weights: int) -> None:
        if weights <= self.weights + self.kv.free_bytes:
            self.kv.set_weight_bytes(weights)
            self.weights = weights

    @invariant()
    def what_is_free_is_what_nobody_holds(self) -> None:
        assert self.kv.free_bytes == BUDGET_BYTES - self.weights - sum(self.held.values())

    def teardown(self) -> None:
        for session in self.held:
            self.kv.release(session)
        self.kv.set_weight_bytes(0)
        assert self.kv.free_bytes == BUDGET_BYTES


TestKvBudget = KvBudgetMachine.TestCase
