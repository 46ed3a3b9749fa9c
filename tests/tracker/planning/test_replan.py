from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_tracker.planning.coverage import routable_coverage
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.replan import is_searched, next_step
from meshnet_tracker.planning.snapshot import MeshSnapshot, WorkerView
from tests.tracker.planning.meshes import (
    GB,
    KEY,
    NO_HEADROOM,
    NOW,
    held,
    mesh,
    plan,
    runs,
    settled,
    told,
    worker,
)

PATIENT = replace(NO_HEADROOM, expected_life_seconds=1e6)


def rated(view: WorkerView) -> WorkerView:
    """Give it a speed that is the same however many Layers it holds."""
    return replace(view, layer_rates=(view.speed,) * 40, download_bytes_per_sec=float(GB))


def step(snapshot: MeshSnapshot) -> list[tuple[str, str, int, int]]:
    draft = Draft.of(snapshot, PATIENT, NOW)
    order = next_step(draft, draft.variants[0])
    return told([order] if order else [])


LOPSIDED = (
    rated(worker("fast", 24, held(0, 4), speed=9.0)),
    rated(worker("slow", 24, held(4, 24))),
)


def test_one_worker_at_a_time_loads_before_another_drops() -> None:
    (first,) = step(mesh(24, *LOPSIDED))
    assert first[:2] == ("fast", "LOAD")


def test_the_placement_is_reached_and_then_left_alone() -> None:
    end, _ = settled(mesh(24, *LOPSIDED), PATIENT)
    fast = runs(end)["fast"]
    assert fast[1] - fast[0] > 12
    assert plan(end, PATIENT) == ()


def test_a_gain_below_the_threshold_moves_nobody() -> None:
    pool = rated(worker("a", 24, held(0, 13))), rated(worker("b", 24, held(13, 24)))
    assert step(mesh(24, *pool)) == [] or routable_coverage(mesh(24, *pool), KEY).servable


def test_loads_that_take_most_of_a_workers_life_are_not_begun() -> None:
    slow = tuple(replace(each, download_bytes_per_sec=GB / 1e6) for each in LOPSIDED)
    assert step(mesh(24, *slow)) == []


def test_workers_without_measured_rates_are_moved_boundary_by_boundary() -> None:
    plain = mesh(24, worker("a", 24, held(0, 4)), worker("b", 24, held(4, 24)))
    assert not is_searched(Draft.of(plain, PATIENT, NOW).variants[0])
    assert is_searched(Draft.of(mesh(24, *LOPSIDED), PATIENT, NOW).variants[0])


POOLS = st.lists(
    st.tuples(st.integers(1, 14), st.sampled_from((0.5, 1.0, 2.0, 5.0))), min_size=2, max_size=5
)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 12), POOLS)
def test_every_way_ends_in_a_fixed_point(layers: int, drawn: list[tuple[int, float]]) -> None:
    snapshot = mesh(layers)
    for index, (capacity, speed) in enumerate(drawn):
        joined = rated(worker(f"w{index}", capacity, speed=speed))
        snapshot, _ = settled(replace(snapshot, workers=(*snapshot.workers, joined)), PATIENT)
    room = sum(capacity for capacity, _ in drawn)
    assert routable_coverage(snapshot, KEY).servable or room < layers
