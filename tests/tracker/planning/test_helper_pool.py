from dataclasses import replace

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.filling import GapPlan
from meshnet_tracker.planning.helper_pool import DROP_SECONDS, HelperPool
from meshnet_tracker.planning.snapshot import (
    Demand,
    Holding,
    MeshSnapshot,
    VariantKey,
    WorkerView,
)
from meshnet_tracker.planning.soonest import Helper
from tests.tracker.planning.meshes import (
    GB,
    NO_HEADROOM,
    NOW,
    held,
    preset,
    variant,
    worker,
)

WANTED, OTHER = VariantKey("m0", "nf4"), VariantKey("m1", "nf4")
PRESETS = preset(variant(8), name="m0"), preset(variant(8), name="m1")


def lined(view: WorkerView, layers_per_second: float = 0.1) -> WorkerView:
    return replace(view, download_bytes_per_sec=layers_per_second * GB)


def pool(*workers: WorkerView, drops: bool, given_up: frozenset[VariantKey]) -> HelperPool:
    snapshot = MeshSnapshot(PRESETS, workers, demand=(Demand(WANTED, 2.0), Demand(OTHER, 1.0)))
    draft = Draft.of(snapshot, NO_HEADROOM, NOW)
    return HelperPool.of(GapPlan.of(draft, draft.states[WANTED]), given_up, drops=drops)


def only(found: HelperPool) -> Helper:
    (helper,) = found.helpers
    return helper


def test_who_loads_something_else_first_helps_after_it() -> None:
    busy = lined(worker("a", 8, held(0, 3, Holding.LOADING, OTHER)))
    helper = only(pool(busy, drops=False, given_up=frozenset()))
    assert (helper.layers, helper.delay_seconds) == (5, 30.0)


def test_a_load_for_a_variant_that_is_given_up_is_called_off() -> None:
    busy = lined(worker("a", 8, held(0, 3, Holding.LOADING, OTHER)))
    found = pool(busy, drops=True, given_up=frozenset({OTHER}))
    assert (only(found).layers, only(found).delay_seconds) == (8, DROP_SECONDS)
    assert found.called_off_bytes(WorkerId("a")) == 3 * GB


def test_what_is_on_its_way_is_told_apart_from_what_is_ready() -> None:
    loading = lined(worker("a", 8, held(0, 2, key=WANTED), held(2, 6, Holding.LOADING, WANTED)))
    helper = only(pool(loading, drops=False, given_up=frozenset()))
    assert (helper.run, helper.coming) == (ShardRange(0, 2), ShardRange(2, 6))
    assert (helper.layers, helper.delay_seconds) == (2, 40.0)
