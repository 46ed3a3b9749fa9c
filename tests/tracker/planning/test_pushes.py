from meshnet_common.protocol.messages import DirectiveKind
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.holders import Holder, VariantDraft
from meshnet_tracker.planning.pushes import Push, Trim, best_trim, next_push
from meshnet_tracker.planning.snapshot import WorkerView
from tests.tracker.planning.meshes import NO_HEADROOM, NOW, held, mesh, worker


def state_of(layers: int, *workers: WorkerView) -> VariantDraft:
    return Draft.of(mesh(layers, *workers), NO_HEADROOM, NOW).variants[0]


def trim_of(layers: int, *workers: WorkerView) -> Trim | None:
    state = state_of(layers, *workers)
    return best_trim(state.sizes, state.ready, state.holders, state.gaps[0])


def push_of(layers: int, *workers: WorkerView) -> tuple[str, DirectiveKind, ShardRange] | None:
    state = state_of(layers, *workers)
    push = next_push(state.sizes, state.ready, state.holders, state.gaps)
    return None if push is None else shown(push)


def shown(push: Push) -> tuple[str, DirectiveKind, ShardRange]:
    return push.holder.worker_id, push.kind, push.shard_range


def holder_of(trim: Trim | None) -> Holder:
    assert trim is not None
    return trim.holder


def test_no_more_is_dropped_than_the_gap_needs() -> None:
    trim = trim_of(9, worker("a", 6, held(0, 6)), worker("b", 8, held(0, 8)))
    assert trim is not None
    assert (trim.dropped, trim.gained) == (ShardRange(0, 1), ShardRange(8, 9))


def test_below_a_gap_and_above_it_the_same_rule_holds() -> None:
    trim = trim_of(9, worker("a", 6, held(3, 9)), worker("b", 8, held(1, 9)))
    assert trim is not None
    assert holder_of(trim).worker_id == "b"
    assert (trim.dropped, trim.gained) == (ShardRange(8, 9), ShardRange(0, 1))


def test_what_nobody_else_has_ready_is_never_dropped() -> None:
    assert trim_of(9, worker("b", 8, held(0, 8))) is None


def test_a_worker_bound_to_layer_zero_keeps_its_first_layers() -> None:
    pool = worker("a", 6, held(0, 6)), worker("b", 8, held(0, 8), bound=True)
    assert trim_of(9, *pool) is None


def test_a_worker_with_room_for_all_up_to_the_gap_loads_it_at_once() -> None:
    push = push_of(8, worker("a", 8, held(0, 3)), worker("b", 4, held(3, 7)))
    assert push == ("a", DirectiveKind.LOAD_SHARD, ShardRange(3, 8))


def test_room_moves_toward_the_gap_from_the_nearest_worker_that_has_some() -> None:
    pool = (
        worker("a", 3, held(0, 2)),
        worker("b", 3, held(2, 5)),
        worker("c", 3, held(5, 8)),
    )
    assert push_of(9, *pool) == ("a", DirectiveKind.LOAD_SHARD, ShardRange(2, 3))


def test_a_worker_on_the_way_drops_what_it_was_relieved_of() -> None:
    pool = (
        worker("a", 3, held(0, 3)),
        worker("b", 3, held(2, 5)),
        worker("c", 3, held(5, 8)),
    )
    assert push_of(9, *pool) == ("b", DirectiveKind.DROP_SHARD, ShardRange(2, 3))


def test_room_behind_the_last_gap_moves_down_to_it() -> None:
    pool = worker("a", 3, held(1, 4)), worker("b", 4, held(4, 7))
    assert push_of(7, *pool) == ("b", DirectiveKind.LOAD_SHARD, ShardRange(3, 4))


def test_between_two_gaps_room_moves_up_only() -> None:
    pool = worker("a", 3, held(1, 4)), worker("b", 4, held(4, 7))
    assert push_of(8, *pool) is None


def test_nobody_is_pushed_toward_a_gap_that_the_worker_beside_it_cannot_enter() -> None:
    heavy = [10**9] * 4 + [4 * 10**9]
    pool = worker("a", 3, held(0, 2)), worker("b", 2, held(2, 4))
    state = Draft.of(mesh(heavy, *pool), NO_HEADROOM, NOW).variants[0]
    assert next_push(state.sizes, state.ready, state.holders, state.gaps) is None
