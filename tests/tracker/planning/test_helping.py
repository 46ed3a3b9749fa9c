from dataclasses import replace

from meshnet_common.protocol.messages import DirectiveReason
from meshnet_tracker.planning.coverage import routable_coverage
from meshnet_tracker.planning.rebalance import plan_rebalance
from meshnet_tracker.planning.snapshot import (
    Demand,
    Holding,
    MeshSnapshot,
    VariantKey,
    WorkerView,
)
from tests.tracker.planning.meshes import (
    GB,
    KEY,
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


SLOW = lined(worker("a", 12, held(0, 8, Holding.LOADING)), 0.02)


def test_what_would_be_loading_for_long_is_loaded_by_others_as_well() -> None:
    pool = SLOW, lined(worker("b", 8, held(0, 2, key=KEY)), 0.25)
    orders = told(plan_rebalance(mesh(8, *pool), NO_HEADROOM, NOW))
    assert orders == [("b", "LOAD", 2, 8)]


def test_what_is_there_soon_is_waited_for() -> None:
    nearly = lined(worker("a", 12, held(0, 7), held(7, 8, Holding.LOADING)), 0.1)
    pool = nearly, lined(worker("b", 8, held(0, 7)), 0.15)
    orders = plan_rebalance(mesh(8, *pool), NO_HEADROOM, NOW)
    assert DirectiveReason.GAP not in {order.reason for order in orders}


def test_a_load_that_is_worth_less_than_a_gap_is_called_off_for_it() -> None:
    presets = preset(variant(8), name="m0"), preset(variant(8), name="m1")
    pool = (lined(worker("a", 8, held(0, 8, Holding.LOADING, OTHER))),)
    demand = Demand(WANTED, 8.0), Demand(OTHER, 1.0)
    snapshot = MeshSnapshot(presets, pool, demand=demand)
    (order,) = plan_rebalance(snapshot, NO_HEADROOM, NOW)
    assert told([order]) == [("a", "DROP", 0, 8)]
    assert (order.variant, order.gives_up) == (OTHER, True)
    end, _ = settled(snapshot)
    assert routable_coverage(end, WANTED).servable
