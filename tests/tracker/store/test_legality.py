from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import HeldShard, Holding
from meshnet_tracker.store.legality import still_legal
from tests.tracker.builders import MODEL, drop, load

W1, W2 = WorkerId("w1"), WorkerId("w2")


def holding(start: int, end: int, what: Holding = Holding.READY) -> tuple[HeldShard, ...]:
    return (HeldShard(MODEL, ShardRange(start, end), what),)


def test_a_drop_is_legal_while_another_worker_has_its_layers_ready() -> None:
    planned = [drop("w1", 0, 3)]
    assert still_legal(planned, {W1: holding(0, 6), W2: holding(0, 3)}, {MODEL}) == planned


def test_a_drop_that_would_open_a_gap_is_left_out() -> None:
    for what in (Holding.LOADING, Holding.ORDERED, Holding.DRAINING):
        held = {W1: holding(0, 6), W2: holding(0, 3, what)}
        assert still_legal([drop("w1", 0, 3)], held, {MODEL}) == []


def test_the_second_of_two_drops_of_the_same_layers_is_left_out() -> None:
    held = {W1: holding(0, 3), W2: holding(0, 3)}
    assert still_legal([drop("w1", 0, 3), drop("w2", 0, 3)], held, {MODEL}) == [drop("w1", 0, 3)]


def test_layers_that_are_not_ready_may_be_dropped() -> None:
    planned = [drop("w1", 0, 3)]
    assert still_legal(planned, {W1: holding(0, 3, Holding.LOADING)}, {MODEL}) == planned


def test_a_variant_that_is_not_served_may_be_dropped() -> None:
    planned = [drop("w1", 0, 6)]
    assert still_legal(planned, {W1: holding(0, 6)}, set()) == planned


def test_what_is_already_ordered_is_left_out() -> None:
    held = {W1: holding(0, 6, Holding.ORDERED), W2: holding(0, 6, Holding.DRAINING)}
    assert still_legal([load("w1", 0, 6), drop("w2", 0, 6)], held, {MODEL}) == []


def test_a_worker_that_is_gone_gets_nothing() -> None:
    assert still_legal([load("w1", 0, 6)], {}, {MODEL}) == []
