from dataclasses import replace

from meshnet_tracker.planning.coverage import routable_coverage
from meshnet_tracker.planning.covering import cover
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.snapshot import Demand, MeshSnapshot, VariantKey, WorkerView
from tests.tracker.planning.meshes import (
    NO_HEADROOM,
    NOW,
    held,
    preset,
    settled,
    variant,
    worker,
)

A, B = VariantKey("a", "nf4"), VariantKey("b", "nf4")


def two_models(*workers: WorkerView, a: float = 0.0, b: float = 0.0) -> MeshSnapshot:
    """Build a Mesh that serves two models of 8 Layers, asked for so much."""
    presets = preset(variant(8), name="a"), preset(variant(8), name="b")
    demand = tuple(Demand(key, each) for key, each in ((A, a), (B, b)) if each)
    return MeshSnapshot(presets, workers, demand=demand)


def served(snapshot: MeshSnapshot) -> set[VariantKey]:
    end, _ = settled(snapshot)
    return {key for key in (A, B) if routable_coverage(end, key).servable}


def test_the_model_that_is_asked_for_more_is_covered_first() -> None:
    pool = worker("x", 4), worker("y", 4)
    assert served(two_models(*pool, a=1.0, b=2.0)) == {B}
    assert served(two_models(*pool)) == {A}


def test_both_are_covered_where_memory_allows_also_on_the_same_workers() -> None:
    assert served(two_models(worker("x", 11), worker("y", 5))) == {A, B}


def test_a_model_that_nobody_asks_for_is_given_up_only_for_one_that_is_asked_for() -> None:
    holding = worker("x", 8, held(0, 8, key=A))
    assert served(two_models(holding)) == {A}
    assert served(two_models(holding, a=1.0, b=9.0)) == {A}
    assert served(two_models(holding, b=1.0)) == {B}


def test_nothing_is_given_up_that_does_not_cover_the_other() -> None:
    assert served(two_models(worker("x", 4, held(0, 4, key=A)), b=1.0)) == set()
    assert served(two_models(worker("x", 8, held(0, 8, key=A), quantizations=["nf4"]))) == {A}


def test_a_half_that_serves_nobody_is_given_up_for_a_whole() -> None:
    small = preset(variant(8), name="a"), preset(variant(4), name="b")
    half = worker("x", 4, held(0, 4, key=A))
    end, _ = settled(MeshSnapshot(small, (half,)))
    assert routable_coverage(end, B).servable


def test_a_model_that_is_covered_or_can_be_is_said_to_come() -> None:
    snapshot = two_models(worker("x", 8, held(0, 8, key=A)), worker("y", 4))
    covering = cover(Draft.of(snapshot, NO_HEADROOM, NOW))
    assert covering.coming == {A}
    assert [plan.state.key for plan in covering.short] == [B]
    more = replace(snapshot, workers=(*snapshot.workers, worker("z", 4)))
    assert cover(Draft.of(more, NO_HEADROOM, NOW)).coming == {A, B}
