from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.draft import Draft, drop, load, serving_order
from meshnet_tracker.planning.snapshot import Holding, MeshSnapshot, VariantKey
from tests.tracker.planning.meshes import (
    GB,
    KEY,
    NO_HEADROOM,
    NOW,
    held,
    mesh,
    preset,
    variant,
    worker,
)


def draft_of(snapshot: MeshSnapshot) -> Draft:
    return Draft.of(snapshot, NO_HEADROOM, NOW)


def test_each_presets_default_is_served_before_any_other_variant() -> None:
    first = preset(variant(2, "int8"), variant(2, "bfloat16"), name="a")
    second = preset(variant(2), name="b")
    assert serving_order(MeshSnapshot((second, first), ())) == (
        VariantKey("a", "int8"),
        VariantKey("b", "nf4"),
        VariantKey("a", "bfloat16"),
    )


def test_pieces_of_one_run_are_one_holder() -> None:
    snapshot = mesh(8, worker("a", 8, held(0, 3), held(3, 5, Holding.LOADING)))
    (holder,) = draft_of(snapshot).variants[0].holders
    assert holder.run == ShardRange(0, 5)
    assert not holder.settled


def test_a_worker_that_holds_two_pieces_is_left_alone() -> None:
    snapshot = mesh(8, worker("a", 8, held(0, 2), held(4, 5)))
    holders = draft_of(snapshot).variants[0].holders
    assert [holder.run for holder in holders] == [ShardRange(0, 2), ShardRange(4, 5)]
    assert not any(holder.settled or holder.may_load for holder in holders)


def test_other_variants_shorten_what_a_variant_may_take() -> None:
    both = preset(variant(8), variant(8, "int8", embedding_bytes=GB))
    other = held(0, 2, key=VariantKey("llama", "int8"))
    (holder,) = draft_of(mesh(both, worker("a", 8, held(0, 1), other))).variants[0].holders
    assert holder.budget_bytes == 5 * GB


def test_what_is_served_no_more_leaves_no_known_room() -> None:
    other = held(0, 2, key=VariantKey("gone", "nf4"))
    (holder,) = draft_of(mesh(8, worker("a", 8, held(0, 1), other))).variants[0].holders
    assert holder.budget_bytes == 0


def test_only_workers_that_hold_nothing_and_do_not_cool_are_free() -> None:
    snapshot = mesh(
        8,
        worker("free", 4),
        worker("cooling", 4, cooling_until=NOW + 1),
        worker("cooled", 4, cooling_until=NOW),
        worker("holding", 4, held(0, 1)),
        worker("emptying", 4, held(0, 1, Holding.DRAINING)),
    )
    draft = draft_of(snapshot)
    assert draft.free == {"free", "cooled"}
    assert draft.emptying == {"emptying"}


def test_candidates_can_run_the_variant() -> None:
    draft = draft_of(mesh(8, worker("a", 4), worker("b", 4, quantizations=["int8"])))
    assert [each.worker_id for each in draft.candidates(draft.free, KEY)] == ["a"]


def test_issuing_keeps_the_counts_true() -> None:
    draft = draft_of(mesh(4, worker("a", 4, held(0, 2)), worker("b", 4)))
    draft.issue(load(WorkerId("b"), KEY, ShardRange(1, 4), DirectiveReason.GAP))
    draft.issue(drop(WorkerId("a"), KEY, ShardRange(1, 2), DirectiveReason.SPEED))
    state = draft.variants[0]
    assert state.planned == [1, 1, 1, 1]
    assert state.ready == [1, 0, 0, 0]
    assert state.in_flight
    assert draft.busy == {"a", "b"}
    assert not draft.free


def test_the_order_of_the_input_changes_nothing() -> None:
    workers = (worker("b", 4, held(0, 2)), worker("a", 4, held(1, 4)), worker("c", 1))
    forward, backward = (draft_of(mesh(4, *each)) for each in (workers, workers[::-1]))
    assert forward == backward
