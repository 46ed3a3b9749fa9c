from dataclasses import replace

import pytest

from meshnet_common.protocol.messages import DirectiveReason
from meshnet_tracker.planning.coverage import routable_coverage
from meshnet_tracker.planning.rebalance import coming_variants
from meshnet_tracker.planning.snapshot import (
    Holding,
    MeshSnapshot,
    PlannerPolicy,
    VariantKey,
    WorkerView,
)
from tests.tracker.planning.meshes import (
    GB,
    KEY,
    NO_HEADROOM,
    NOW,
    done,
    held,
    issued,
    mesh,
    plan,
    preset,
    runs,
    settled,
    told,
    variant,
    worker,
)


def test_an_empty_mesh_plans_nothing() -> None:
    assert plan(MeshSnapshot((), ())) == ()
    assert plan(mesh(8)) == ()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            PlannerPolicy(headroom_bytes=8 * GB),
            [("A", "LOAD", 0, 27), ("B", "LOAD", 27, 43), ("C", "LOAD", 43, 59)],
        ),
        (
            PlannerPolicy(),
            [("A", "LOAD", 0, 23), ("B", "LOAD", 23, 37), ("C", "LOAD", 37, 51)],
        ),
    ],
)
def test_the_worked_example_of_a4(
    policy: PlannerPolicy, expected: list[tuple[str, str, int, int]]
) -> None:
    pool = worker("A", 128), worker("B", 80), worker("C", 80)
    snapshot = mesh([4_375_000_000] * 80, *pool)
    directives = plan(snapshot, policy)
    assert told(directives) == expected
    assert {directive.reason for directive in directives} == {DirectiveReason.GAP}
    assert plan(done(issued(snapshot, directives)), policy) == ()


def test_a_joiner_with_room_is_told_to_fill_the_gap_of_a4() -> None:
    pool = (
        worker("A", 27, held(0, 27)),
        worker("B", 16, held(27, 43)),
        worker("C", 16, held(43, 59)),
        worker("D", 21),
    )
    assert told(plan(mesh(80, *pool))) == [("D", "LOAD", 59, 80)]


def test_the_boundary_follows_a_worker_that_became_twice_as_fast() -> None:
    snapshot, _ = settled(mesh(24, worker("B", 16), worker("C", 16)))
    assert runs(snapshot) == {"B": (0, 12), "C": (12, 24)}
    faster = tuple(replace(w, speed=2.0 if w.worker_id == "B" else 1.0) for w in snapshot.workers)
    snapshot, passes = settled(replace(snapshot, workers=faster))
    assert runs(snapshot) == {"B": (0, 16), "C": (16, 24)}
    assert passes == 2


def test_workers_that_join_one_by_one_end_with_the_boundary_where_it_belongs() -> None:
    snapshot, _ = settled(mesh(24, worker("B", 16)))
    assert runs(snapshot) == {"B": (0, 16)}
    snapshot, _ = settled(replace(snapshot, workers=(*snapshot.workers, worker("C", 16))))
    assert runs(snapshot) == {"B": (0, 12), "C": (12, 24)}


def test_after_a_leave_one_drop_trims_the_third() -> None:
    pool = (
        worker("first", 22, held(0, 14)),
        worker("second", 22, held(14, 28)),
        worker("third", 22, held(0, 22)),
    )
    assert plan(mesh(28, *pool)) == ()
    after = mesh(28, *pool[1:])
    assert told(plan(after)) == [("third", "DROP", 14, 22)]
    snapshot, passes = settled(after)
    assert runs(snapshot) == {"second": (14, 28), "third": (0, 14)}
    assert passes == 1


def test_one_lost_worker_is_replaced_by_one_free_worker() -> None:
    pool = worker("a", 10, held(0, 10)), worker("c", 10, held(20, 30)), worker("spare", 12)
    assert told(plan(mesh(30, *pool))) == [("spare", "LOAD", 10, 20)]


def test_two_copies_are_made_at_once_where_memory_allows() -> None:
    pool = [worker(f"{i}", n) for i, n in enumerate((40, 40, 20, 20, 10, 10))]
    snapshot, passes = settled(mesh(70, *pool))
    assert passes == 1
    assert sorted(runs(snapshot).values()) == sorted(((0, 40), (40, 60), (60, 70)) * 2)


def test_what_is_in_flight_is_not_ordered_again() -> None:
    snapshot = mesh(8, worker("a", 4), worker("b", 4))
    directives = plan(snapshot)
    ordered = issued(snapshot, directives)
    assert plan(ordered) == ()
    assert plan(done(ordered, only=[directives[0].worker_id])) == ()


@pytest.mark.parametrize("holding", [Holding.ORDERED, Holding.LOADING, Holding.DRAINING])
def test_a_worker_with_something_in_flight_gets_nothing_else(holding: Holding) -> None:
    busy = worker("a", 10, held(0, 5), held(5, 6, holding))
    assert plan(mesh(10, busy)) == ()


def test_a_worker_whose_load_failed_gets_no_load_until_it_has_cooled() -> None:
    cooling = worker("a", 8, cooling_until=NOW + 5)
    assert plan(mesh(8, cooling)) == ()
    assert told(plan(mesh(8, replace(cooling, cooling_until=NOW)))) == [("a", "LOAD", 0, 8)]


def test_a_gap_that_opens_is_filled_by_shifting_room_along_the_chain() -> None:
    pool = (
        worker("a", 9, held(0, 5)),
        worker("b", 5, held(5, 10)),
        worker("c", 5, held(10, 15)),
    )
    snapshot, _ = settled(mesh(18, *pool))
    assert routable_coverage(snapshot, KEY).servable


def test_the_default_of_the_first_preset_by_name_is_served_first() -> None:
    presets = (preset(variant(8), name="b"), preset(variant(8), variant(8, "int8"), name="a"))
    pool = (worker("x", 5), worker("y", 5, quantizations=["nf4", "int8"]))
    directives = plan(MeshSnapshot(presets, pool))
    assert {directive.variant for directive in directives} == {VariantKey("a", "nf4")}
    assert sum(len(directive.shard_range) for directive in directives) == 8


def test_two_models_are_covered_before_either_is_copied() -> None:
    presets = (preset(variant(8), name="a"), preset(variant(4), name="b"))
    pool = tuple(worker(f"{i}", 4) for i in range(5))
    snapshot, _ = settled(MeshSnapshot(presets, pool))
    assert all(routable_coverage(snapshot, key).servable for key, _ in snapshot.variants())


def test_there_are_never_two_halves_of_two_models() -> None:
    presets = (preset(variant(8), name="a"), preset(variant(8), name="b"))
    pool = tuple(worker(f"{i}", 4) for i in range(3))
    snapshot, _ = settled(MeshSnapshot(presets, pool))
    assert routable_coverage(snapshot, VariantKey("a", "nf4")).servable
    assert not any(routable_coverage(snapshot, VariantKey("b", "nf4")).counts)


def test_a_model_that_nobody_can_cover_yet_is_begun_only_if_there_is_no_other() -> None:
    small, large = preset(variant(2), name="z"), preset(variant(8), name="a")
    holding = worker("x", 2, held(0, 2, key=VariantKey("z", "nf4")))
    directives = plan(MeshSnapshot((small, large), (holding, worker("y", 4))))
    assert {directive.variant.model for directive in directives} == {"z"}


def test_shards_of_a_variant_that_is_served_no_more_are_dropped() -> None:
    gone = held(0, 2, key=VariantKey("gone", "nf4"))
    (order,) = plan(mesh(8, worker("a", 8, gone)))
    assert (*told([order]), order.reason) == (("a", "DROP", 0, 2), DirectiveReason.OPERATOR)


def test_a_worker_that_holds_two_variants_stays_within_its_budget() -> None:
    both = preset(variant(8), variant(8, "int8"))
    other = held(0, 3, key=VariantKey("llama", "int8"))
    pool: tuple[WorkerView, ...] = (
        worker("a", 6, held(0, 2), other, quantizations=["nf4", "int8"]),
    )
    assert told(plan(mesh(both, *pool))) == [("a", "LOAD", 2, 3)]


def comes(snapshot: MeshSnapshot) -> bool:
    return KEY in coming_variants(snapshot, NO_HEADROOM, NOW)


def test_a_model_comes_while_it_is_covered_being_loaded_or_can_be() -> None:
    half = worker("a", 4, held(0, 4))
    assert comes(mesh(8, half, worker("b", 4, held(4, 8))))
    assert comes(mesh(8, half, worker("b", 4, held(4, 8, Holding.ORDERED))))
    assert comes(mesh(8, half, worker("b", 4, held(4, 6), held(6, 8, Holding.LOADING))))
    assert comes(mesh(8, half, worker("b", 4)))
    assert comes(mesh(8, worker("a", 4), worker("b", 4)))


def test_a_model_does_not_come_where_its_gaps_are_more_than_there_is_room_for() -> None:
    half = worker("a", 4, held(0, 4))
    for other in (
        worker("b", 3),
        worker("b", 3, held(4, 7, Holding.LOADING)),
        worker("b", 4, cooling_until=NOW + 1),
        worker("b", 4, leaving=True),
        worker("b", 4, held(4, 8, Holding.DRAINING), leaving=True),
    ):
        assert not comes(mesh(8, half, other))


def test_a_model_does_not_come_where_another_order_only_makes_its_gaps_smaller() -> None:
    served = preset(variant(4, head_bytes=GB))
    assert not comes(mesh(served, worker("a", 1, held(1, 2)), worker("b", 2)))


def test_a_model_comes_also_by_a_worker_that_has_to_be_emptied_first() -> None:
    copies = (worker("a", 4, held(0, 4)), worker("b", 4, held(0, 4)))
    assert comes(mesh(8, *copies))


def test_what_a_leaving_worker_holds_is_replaced_and_it_is_told_nothing() -> None:
    leaving = worker("a", 8, held(0, 4, Holding.DRAINING), leaving=True)
    staying = worker("b", 4, held(4, 8))
    assert told(plan(mesh(8, leaving, staying, worker("c", 4)))) == [("c", "LOAD", 0, 4)]
    assert plan(mesh(8, leaving, staying)) == ()
    assert plan(mesh(8, worker("a", 8, leaving=True))) == ()
