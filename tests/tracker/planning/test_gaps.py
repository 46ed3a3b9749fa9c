import pytest

from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.filling import GapPlan
from meshnet_tracker.planning.gaps import plan_gaps
from meshnet_tracker.planning.snapshot import HeldShard, Holding, MeshSnapshot, VariantKey
from tests.tracker.planning.meshes import (
    KEY,
    NO_HEADROOM,
    NOW,
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


def plan_for(snapshot: MeshSnapshot) -> GapPlan:
    draft = Draft.of(snapshot, NO_HEADROOM, NOW)
    return plan_gaps(draft, draft.variants[0])


def orders(snapshot: MeshSnapshot) -> list[tuple[str, str, int, int]]:
    return told(plan_for(snapshot).orders)


def test_the_largest_free_worker_fills_a_gap_and_nobody_else_moves() -> None:
    snapshot = mesh(
        10, worker("a", 9, held(0, 6)), worker("small", 4), worker("large", 5), worker("tiny", 1)
    )
    assert orders(snapshot) == [("large", "LOAD", 6, 10)]


def test_the_longest_gap_is_filled_first() -> None:
    snapshot = mesh(10, worker("a", 2, held(2, 4)), worker("large", 6), worker("small", 2))
    assert orders(snapshot) == [("large", "LOAD", 4, 10), ("small", "LOAD", 0, 2)]


def test_without_free_workers_one_beside_the_gap_extends_its_run() -> None:
    snapshot = mesh(10, worker("a", 7, held(0, 6)), worker("b", 4, held(9, 10)))
    assert orders(snapshot) == [("b", "LOAD", 6, 9)]


def test_a_worker_between_two_gaps_gets_one_directive_and_nobody_moves_for_the_other() -> None:
    snapshot = mesh(8, worker("a", 8, held(2, 6)), worker("b", 5, held(3, 5)))
    assert orders(snapshot) == [("a", "LOAD", 6, 8)]
    assert plan_for(snapshot).complete


def test_a_worker_bound_to_layer_zero_extends_upward_only() -> None:
    snapshot = mesh(8, worker("head", 4, held(0, 2), bound=True), worker("b", 4, held(4, 8)))
    assert orders(snapshot) == [("head", "LOAD", 2, 4)]
    assert orders(mesh(8, worker("b", 8, held(4, 8), bound=True))) == []


def test_a_cooling_worker_is_given_nothing() -> None:
    later = NOW + 1
    snapshot = mesh(
        8, worker("a", 8, held(0, 6), cooling_until=later), worker("b", 8, cooling_until=later)
    )
    assert orders(snapshot) == []
    assert not plan_for(snapshot).complete


def test_far_layers_that_others_serve_make_room_beside_the_gap() -> None:
    snapshot = mesh(28, worker("a", 14, held(0, 14)), worker("c", 22, held(0, 22)))
    assert orders(snapshot) == [("c", "DROP", 0, 6)]


def test_a_redundant_worker_is_emptied_for_the_gap() -> None:
    snapshot = mesh(
        9, worker("a", 3, held(0, 3)), worker("b", 3, held(0, 3)), worker("c", 3, held(3, 6))
    )
    assert orders(snapshot) == [("a", "DROP", 0, 3)]


def test_two_workers_that_are_redundant_through_each_other_do_not_both_go() -> None:
    snapshot = mesh(
        9, worker("a", 3, held(0, 3)), worker("b", 3, held(0, 3)), worker("c", 1, held(3, 4))
    )
    assert orders(snapshot) == [("a", "DROP", 0, 3)]
    assert not plan_for(snapshot).complete


def test_layers_that_are_only_loading_elsewhere_are_not_dropped() -> None:
    loading = worker("b", 3, held(0, 3, Holding.LOADING))
    assert orders(mesh(6, worker("a", 3, held(0, 3)), loading)) == []


def test_a_worker_that_is_being_emptied_is_waited_for() -> None:
    snapshot = mesh(
        9,
        worker("a", 3, held(0, 3)),
        worker("b", 3, held(0, 3)),
        worker("c", 3, held(3, 6)),
        worker("d", 3, held(0, 3, Holding.DRAINING)),
    )
    assert orders(snapshot) == []
    assert plan_for(snapshot).complete


@pytest.mark.parametrize("emptied", [KEY, OTHER, VariantKey("gone", "nf4")])
@pytest.mark.parametrize("kept", [(), (held(0, 4, key=OTHER),)])
def test_nobody_waits_for_an_emptied_worker_while_others_have_room(
    emptied: VariantKey, kept: tuple[HeldShard, ...]
) -> None:
    """A drop may take minutes, in which the Variant would stay uncovered."""
    drained = held(4, 8, Holding.DRAINING, emptied)
    busy = worker("a", 40, drained, *kept, quantizations=ANY)
    roomy = worker("b", 40, held(0, 8, key=OTHER), quantizations=ANY)
    assert orders(mesh(BOTH, busy, roomy)) == [("b", "LOAD", 0, 8)]


def test_redundant_workers_of_another_variant_are_borrowed_only_to_complete_this_one() -> None:
    other = VariantKey("llama", "int8")
    both = preset(variant(4), variant(2, "int8"))
    redundant = [
        worker(name, 2, held(0, 2, key=other), quantizations=["nf4", "int8"]) for name in "abc"
    ]
    assert orders(mesh(both, *redundant)) == [("a", "DROP", 0, 2), ("b", "DROP", 0, 2)]
    assert orders(mesh(both, *redundant[:2])) == []


def test_room_from_further_away_is_brought_closer_as_a_last_resort() -> None:
    snapshot = mesh(13, worker("a", 8, held(0, 5)), worker("b", 5, held(5, 10)))
    assert orders(snapshot) == [("a", "LOAD", 5, 8)]
    in_flight = worker("a", 8, held(0, 5), held(5, 8, Holding.ORDERED))
    assert orders(mesh(13, in_flight, worker("b", 5, held(5, 10)))) == []
