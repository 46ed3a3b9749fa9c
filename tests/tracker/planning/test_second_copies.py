from meshnet_common.protocol.messages import DirectiveReason
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.second_copies import second_copies
from meshnet_tracker.planning.snapshot import MeshSnapshot, VariantKey
from tests.tracker.planning.meshes import (
    KEY,
    NO_HEADROOM,
    NOW,
    held,
    mesh,
    preset,
    ready_counts,
    settled,
    told,
    variant,
    worker,
)


def orders(snapshot: MeshSnapshot) -> list[tuple[str, str, int, int]]:
    draft = Draft.of(snapshot, NO_HEADROOM, NOW)
    named = second_copies(draft)
    assert bool(named) == bool(draft.directives)
    assert all(each.reason is DirectiveReason.REDUNDANCY for each in draft.directives)
    return told(draft.directives)


def test_what_one_worker_alone_serves_is_loaded_on_another() -> None:
    pool = worker("a", 8, held(0, 8)), worker("b", 4, held(0, 4)), worker("free", 8)
    assert orders(mesh(8, *pool)) == [("free", "LOAD", 4, 8)]


def test_workers_with_room_are_extended_over_each_other() -> None:
    pool = worker("a", 8, held(0, 4)), worker("b", 8, held(4, 8))
    assert orders(mesh(8, *pool)) == [("b", "LOAD", 0, 4), ("a", "LOAD", 4, 8)]


def test_a_second_copy_may_lie_beside_another_variant() -> None:
    other = VariantKey("llama", "int8")
    both = preset(variant(4), variant(4, "int8"))
    snapshot = mesh(
        both,
        worker("a", 8, held(0, 4), quantizations=["nf4", "int8"]),
        worker("b", 8, held(0, 4, key=other), quantizations=["nf4", "int8"]),
    )
    end, _ = settled(snapshot)
    assert all(min(ready_counts(end, key)) == 2 for key in (KEY, other))


def test_a_second_copy_that_would_be_incomplete_is_not_begun() -> None:
    assert orders(mesh(8, worker("a", 8, held(0, 8)), worker("free", 7))) == []
