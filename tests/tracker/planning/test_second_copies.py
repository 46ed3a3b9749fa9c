from dataclasses import replace

from meshnet_common.protocol.messages import DirectiveReason
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.second_copies import second_copies
from meshnet_tracker.planning.snapshot import Demand, MeshSnapshot, VariantKey, WorkerView
from tests.tracker.planning.meshes import (
    GB,
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


def lined(view: WorkerView) -> WorkerView:
    return replace(view, download_bytes_per_sec=0.1 * GB)


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


def test_a_worker_that_went_over_to_a_model_that_is_wanted_more_is_not_taken_back() -> None:
    less, more = VariantKey("m0", "nf4"), VariantKey("m1", "nf4")
    presets = preset(variant(4), name="m0"), preset(variant(4), name="m1")
    pool = (
        lined(worker("a", 9, held(0, 4, key=less), held(2, 4, key=more), speed=0.5)),
        lined(worker("b", 5, held(0, 4, key=less), speed=5.0)),
        lined(worker("c", 2, held(0, 2, key=more), speed=2.0)),
        worker("d", 1, held(2, 3, key=more), speed=5.0),
    )
    end, _ = settled(MeshSnapshot(presets, pool, demand=(Demand(more, 1.0),)))
    assert min(ready_counts(end, more)) == 2
