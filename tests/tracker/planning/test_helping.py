from dataclasses import replace

from meshnet_tracker.planning.coverage import routable_coverage
from meshnet_tracker.planning.rebalance import plan_rebalance
from meshnet_tracker.planning.snapshot import Demand, MeshSnapshot, VariantKey, WorkerView
from tests.tracker.planning.meshes import (
    GB,
    NO_HEADROOM,
    NOW,
    held,
    mesh,
    preset,
    settled,
    told,
    variant,
    worker,
)

WANTED, OTHER = VariantKey("m0", "nf4"), VariantKey("m1", "nf4")


def lined(view: WorkerView, layers_per_second: float = 0.1) -> WorkerView:
    return replace(view, download_bytes_per_sec=layers_per_second * GB)


def test_a_slow_line_is_not_left_alone_with_a_gap_that_others_have_room_for() -> None:
    pool = (
        lined(worker("a", 8, held(0, 4)), 0.25),
        lined(worker("b", 8, held(10, 14)), 0.25),
        lined(worker("c", 8), 0.04),
    )
    orders = told(plan_rebalance(mesh(14, *pool), NO_HEADROOM, NOW))
    assert {name for name, *_ in orders} == {"a", "b"}


def test_a_model_that_serves_nobody_gives_way_to_one_that_is_asked_for_more() -> None:
    presets = preset(variant(10), name="m0"), preset(variant(8), name="m1")
    pool = (
        lined(worker("a", 6, held(0, 4, key=WANTED), held(0, 2, key=OTHER))),
        lined(worker("b", 4, held(4, 6, key=WANTED), held(2, 4, key=OTHER))),
    )
    demand = Demand(WANTED, 8.0), Demand(OTHER, 1.0)
    end, _ = settled(MeshSnapshot(presets, pool, demand=demand))
    assert routable_coverage(end, WANTED).servable
