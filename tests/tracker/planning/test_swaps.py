from dataclasses import replace

from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.snapshot import (
    Demand,
    Holding,
    MeshSnapshot,
    PlannerPolicy,
    VariantKey,
    WorkerView,
)
from meshnet_tracker.planning.swaps import next_swap
from tests.tracker.planning.meshes import (
    GB,
    NO_HEADROOM,
    NOW,
    held,
    plan,
    preset,
    runs,
    settled,
    told,
    variant,
    worker,
)

A, B = VariantKey("a", "nf4"), VariantKey("b", "nf4")


def whole(name: str, key: VariantKey, *, sessions: int = 0) -> WorkerView:
    return worker(name, 4, held(0, 4, key=key), sessions=sessions)


def two_models(*workers: WorkerView, a: float, b: float) -> MeshSnapshot:
    presets = preset(variant(4), name="a"), preset(variant(4), name="b")
    demand = tuple(Demand(key, each) for key, each in ((A, a), (B, b)) if each)
    return MeshSnapshot(presets, workers, demand=demand)


def swap(
    snapshot: MeshSnapshot, policy: PlannerPolicy = NO_HEADROOM
) -> list[tuple[str, str, int, int]]:
    order = next_swap(Draft.of(snapshot, policy, NOW))
    return told([order] if order else [])


IDLE_COPY = whole("x", A), whole("y", B), whole("z", B)


def test_an_idle_copy_of_a_little_wanted_model_goes_over_to_a_hot_one() -> None:
    snapshot = two_models(*IDLE_COPY, a=9.0, b=1.0)
    assert swap(snapshot) == [("y", "DROP", 0, 4)]
    end, passes = settled(snapshot)
    assert passes == 2
    assert runs(end, A) == {"x": (0, 4), "y": (0, 4)}


def test_the_worker_with_fewest_sessions_goes() -> None:
    busy = replace(IDLE_COPY[1], sessions=3)
    assert swap(two_models(IDLE_COPY[0], busy, IDLE_COPY[2], a=9.0, b=1.0)) == [("z", "DROP", 0, 4)]


def test_a_swap_that_gains_less_than_the_threshold_is_not_made() -> None:
    three = (*(whole(f"a{i}", A) for i in range(2)), *(whole(f"b{i}", B) for i in range(3)))
    assert swap(two_models(*three, a=1.1, b=1.0)) == []
    assert swap(two_models(*three, a=2.0, b=1.0)) == [("b0", "DROP", 0, 4)]


def test_nobody_swaps_back_when_the_demand_stays() -> None:
    end, _ = settled(two_models(*IDLE_COPY, a=9.0, b=1.0))
    assert plan(end) == ()


def test_a_load_that_takes_most_of_a_workers_life_is_not_worth_it() -> None:
    slow = tuple(replace(each, download_bytes_per_sec=GB / 600) for each in IDLE_COPY)
    snapshot = two_models(*slow, a=9.0, b=1.0)
    brief = replace(NO_HEADROOM, expected_life_seconds=2400.0)
    assert swap(snapshot, brief) == []
    assert swap(snapshot, replace(brief, expected_life_seconds=240_000.0)) != []


def test_a_second_copy_is_given_only_for_one_of_a_model_that_is_wanted_more() -> None:
    assert swap(two_models(*IDLE_COPY, a=1.0, b=1.0)) == []


def test_nobody_goes_while_something_of_either_model_is_in_flight() -> None:
    loading = worker("l", 4, held(0, 2, Holding.LOADING, B))
    assert swap(two_models(*IDLE_COPY, loading, a=9.0, b=1.0)) == []


def test_who_alone_serves_a_layer_stays() -> None:
    assert swap(two_models(whole("x", A), whole("y", B), a=9.0, b=0.0)) == []
