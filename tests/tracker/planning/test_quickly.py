from dataclasses import replace

from meshnet_tracker.planning.filling import GapPlan
from meshnet_tracker.planning.quickly import fill_quickly
from meshnet_tracker.planning.snapshot import Holding, MeshSnapshot, VariantKey, WorkerView
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


def lined(view: WorkerView, layers_per_second: float) -> WorkerView:
    return replace(view, download_bytes_per_sec=layers_per_second * GB)


def plan_of(snapshot: MeshSnapshot) -> GapPlan:
    plan = gap_plan(snapshot)
    fill_quickly(plan)
    return plan


def test_a_gap_is_shared_out_by_the_speeds_of_the_lines() -> None:
    pool = lined(worker("a", 80), 0.3), lined(worker("b", 80), 0.1)
    assert told(plan_of(mesh(80, *pool)).orders) == [("a", "LOAD", 0, 60), ("b", "LOAD", 60, 80)]


def test_the_fastest_line_beside_a_gap_takes_part_where_it_lies() -> None:
    pool = lined(worker("low", 60, held(0, 20)), 0.1), lined(worker("free", 80), 0.1)
    orders = told(plan_of(mesh(100, *pool)).orders)
    assert orders == [("low", "LOAD", 20, 60), ("free", "LOAD", 60, 100)]


def test_without_any_measured_line_nothing_is_spread() -> None:
    assert plan_of(mesh(8, worker("a", 8), worker("b", 8))).orders == []


def test_who_loads_something_else_first_is_promised_less_and_told_later() -> None:
    other = VariantKey("llama", "int8")
    both = preset(variant(40), variant(40, "int8"))
    any_of_two = ["nf4", "int8"]
    busy = worker("busy", 80, held(0, 10, Holding.LOADING, other), quantizations=any_of_two)
    pool = lined(busy, 0.1), lined(worker("idle", 40), 0.1)
    plan = plan_of(mesh(both, *pool))
    (order,) = plan.orders
    assert (order.worker_id, len(order.shard_range)) == ("idle", 25)
    assert plan.promised == {"busy": 15 * GB}
    assert plan.complete


def test_where_the_lines_have_too_little_room_the_gap_is_left_to_others() -> None:
    assert plan_of(mesh(8, lined(worker("a", 4), 1.0))).orders == []
