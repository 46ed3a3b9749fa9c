from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.filling import (
    extend,
    fill_with_free,
    share_rooms,
    wait_for_emptying,
)
from meshnet_tracker.planning.snapshot import Holding, VariantKey
from tests.tracker.planning.meshes import (
    GB,
    gap_plan,
    held,
    mesh,
    preset,
    told,
    variant,
    worker,
)

OTHER = VariantKey("llama", "int8")
BOTH = preset(variant(8), variant(8, "int8"))
ANY = ["nf4", "int8"]


def test_free_workers_fill_the_longest_gap_first() -> None:
    plan = gap_plan(mesh(10, worker("a", 2, held(2, 4)), worker("b", 6)))
    fill_with_free(plan)
    assert told(plan.orders) == [("b", "LOAD", 4, 10)]
    assert plan.gaps == [ShardRange(0, 2)]


def test_of_many_free_workers_the_small_ones_are_looked_at_where_the_largest_are_too_few() -> None:
    served = preset(variant(2, head_bytes=4 * GB))
    pool = [worker(f"b{index:02}", 6, bound=True) for index in range(20)]
    plan = gap_plan(mesh(served, *pool, worker("tail", 5)))
    fill_with_free(plan)
    assert plan.complete


def test_a_worker_beside_a_gap_is_extended() -> None:
    plan = gap_plan(mesh(10, worker("a", 8, held(0, 6)), worker("b", 2, held(8, 10))))
    extend(plan)
    assert told(plan.orders) == [("a", "LOAD", 6, 8)]


def test_who_is_being_emptied_is_counted_on_and_told_nothing() -> None:
    plan = gap_plan(mesh(4, worker("a", 4, held(0, 2, Holding.DRAINING))))
    wait_for_emptying(plan)
    assert plan.complete
    assert not plan.orders


def test_room_beside_another_variant_is_used_at_once_or_promised() -> None:
    idle = worker("a", 8, held(0, 4, key=OTHER), quantizations=ANY)
    busy = worker("b", 8, held(0, 4, Holding.LOADING, OTHER), quantizations=ANY)
    plan = gap_plan(mesh(BOTH, idle, busy))
    share_rooms(plan)
    assert plan.complete
    assert len(plan.orders) == 1
    assert plan.orders[0].worker_id == "a"
    assert plan.promised == {"b": 4 * GB}


def test_what_is_reserved_is_not_counted_on_again() -> None:
    busy = worker("b", 8, held(0, 4, Holding.LOADING, OTHER), quantizations=ANY)
    plan = gap_plan(mesh(BOTH, busy))
    share_rooms(plan)
    plan.reserve()
    assert plan.draft.rooms == {"b": 0}
