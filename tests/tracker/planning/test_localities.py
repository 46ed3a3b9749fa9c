from collections.abc import Mapping
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.ids import WorkerId
from meshnet_tracker.planning.localities import UNKNOWN, localities_of, near_peers
from meshnet_tracker.planning.snapshot import WorkerView
from tests.tracker.planning.meshes import worker

NEAR, FAR = 0.004, 0.15


def placed(name: str, region: str = "", **trips: float) -> WorkerView:
    measured = tuple((WorkerId(peer), seconds) for peer, seconds in sorted(trips.items()))
    return replace(worker(name), region=region, round_trips=measured)


def named(*workers: WorkerView) -> Mapping[str, str]:
    return {str(name): place for name, place in localities_of(workers).items()}


def test_two_homes_are_two_localities() -> None:
    found = named(
        placed("a", b=NEAR, c=FAR, d=FAR),
        placed("b", c=FAR),
        placed("c", d=NEAR),
        placed("d", b=FAR),
    )
    assert found == {"a": "a", "b": "a", "c": "c", "d": "c"}


def test_a_round_trip_that_one_end_has_measured_is_enough() -> None:
    assert named(placed("a"), placed("b", a=NEAR)) == {"a": "a", "b": "a"}


def test_those_who_have_measured_nothing_are_where_they_say() -> None:
    found = named(placed("a", "eu"), placed("b", "eu"), placed("c", "us"), placed("d"))
    assert found == {"a": "a", "b": "a", "c": "c", "d": UNKNOWN}


def test_a_worker_that_is_far_from_its_region_is_not_in_it() -> None:
    found = named(
        placed("a", "eu", b=NEAR),
        placed("b", "eu"),
        placed("c", "eu"),
        placed("liar", "eu", a=FAR, b=FAR),
    )
    assert found == {"a": "a", "b": "a", "c": "a", "liar": "liar"}


def test_near_is_near_whatever_two_regions_say() -> None:
    assert named(placed("a", "eu", b=NEAR), placed("b", "de")) == {"a": "a", "b": "a"}


def test_a_region_is_no_worker_of_that_name() -> None:
    assert named(placed("a", "b"), placed("b")) == {"a": "a", "b": UNKNOWN}


def test_who_is_unknown_joins_nobody() -> None:
    assert named(placed("a", gone=NEAR), placed("b", gone=NEAR)) == {"a": UNKNOWN, "b": UNKNOWN}


def test_only_short_round_trips_are_near() -> None:
    assert near_peers(placed("a", b=NEAR, c=FAR)) == {"b"}


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 7), st.integers(0, 7)), st.sampled_from((NEAR, 0.02, FAR))
    ),
    st.lists(st.sampled_from(("", "eu", "us")), min_size=8, max_size=8),
    st.integers(0, 1000),
)
def test_the_order_of_workers_changes_nothing(
    trips: dict[tuple[int, int], float], regions: list[str], seed: int
) -> None:
    pool = [
        placed(f"w{n}", regions[n], **{f"w{b}": s for (a, b), s in trips.items() if a == n != b})
        for n in range(8)
    ]
    found = localities_of(pool)
    Random(seed).shuffle(pool)
    assert localities_of(pool) == found
    assert all(not place or found[WorkerId(place)] == place for place in found.values())
