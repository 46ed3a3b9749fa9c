from meshnet_tracker.planning.clearing import borrow, clear
from meshnet_tracker.planning.snapshot import Holding, VariantKey
from tests.tracker.planning.meshes import (
    KEY,
    gap_plan,
    held,
    mesh,
    preset,
    told,
    variant,
    worker,
)

OTHER = VariantKey("llama", "int8")
BOTH = preset(variant(4), variant(6, "int8"))
ANY = ["nf4", "int8"]


def test_a_redundant_worker_of_the_same_variant_is_emptied() -> None:
    plan = gap_plan(mesh(6, worker("a", 3, held(0, 3)), worker("b", 3, held(0, 3))))
    clear(plan, [KEY])
    assert told(plan.orders) == [("a", "DROP", 0, 3)]
    assert plan.complete


def test_of_another_variant_no_more_is_dropped_than_the_room_is_needed_for() -> None:
    pool = [worker(name, 6, held(0, 6, key=OTHER), quantizations=ANY) for name in "ab"]
    plan = gap_plan(mesh(BOTH, *pool))
    borrow(plan, plan.saved())
    assert told(plan.orders) == [("a", "DROP", 0, 4)]


def test_nothing_is_borrowed_that_does_not_complete_the_variant() -> None:
    pool = [worker(name, 3, held(0, 3, key=OTHER), quantizations=ANY) for name in "ab"]
    plan = gap_plan(mesh(BOTH, *pool))
    borrow(plan, plan.saved())
    assert not plan.orders
    assert not plan.complete


def test_a_variant_that_is_given_up_is_dropped_though_nobody_else_serves_it() -> None:
    plan = gap_plan(mesh(BOTH, worker("a", 6, held(0, 6, key=OTHER), quantizations=ANY)))
    borrow(plan, plan.saved())
    assert not plan.orders
    borrow(plan, plan.saved(), {OTHER})
    assert told(plan.orders) == [("a", "DROP", 0, 4)]
    assert all(order.gives_up for order in plan.orders)


def test_what_is_loose_beside_a_gap_makes_room_to_extend_into_it() -> None:
    beside = worker("a", 6, held(0, 2), held(0, 4, key=OTHER), quantizations=ANY)
    other = worker("b", 6, held(0, 6, key=OTHER), quantizations=["int8"])
    plan = gap_plan(mesh(BOTH, beside, other))
    borrow(plan, plan.saved())
    assert told(plan.orders) == [("a", "DROP", 2, 4)]


def test_who_has_something_in_flight_is_not_cleared() -> None:
    busy = worker("a", 4, held(0, 3), held(3, 4, Holding.LOADING))
    plan = gap_plan(mesh(6, busy, worker("b", 4, held(0, 4))))
    clear(plan, [KEY])
    assert not plan.orders
