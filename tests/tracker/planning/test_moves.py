from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.moves import next_move, next_trim
from meshnet_tracker.planning.snapshot import PlannerPolicy, WorkerView
from tests.tracker.planning.meshes import NO_HEADROOM, NOW, held, mesh, told, worker

Order = tuple[str, str, int, int]


def trim(layers: int, *workers: WorkerView) -> list[Order]:
    draft = Draft.of(mesh(layers, *workers), NO_HEADROOM, NOW)
    return told(order for order in [next_trim(draft, draft.variants[0])] if order)


def move(layers: int, *workers: WorkerView, policy: PlannerPolicy = NO_HEADROOM) -> list[Order]:
    draft = Draft.of(mesh(layers, *workers), policy, NOW)
    return told(order for order in [next_move(draft, draft.variants[0])] if order)


def test_the_boundary_moves_toward_the_slower_worker() -> None:
    pool = worker("B", 16, held(0, 12), speed=2.0), worker("C", 16, held(12, 24))
    assert move(24, *pool) == [("B", "LOAD", 12, 16)]


def test_an_overlap_left_by_a_move_is_trimmed_on_the_slower_side() -> None:
    pool = worker("B", 16, held(0, 16), speed=2.0), worker("C", 16, held(12, 24))
    assert trim(24, *pool) == [("C", "DROP", 12, 16)]


def test_a_move_that_gains_too_little_is_not_made() -> None:
    pool = worker("B", 24, held(0, 13)), worker("C", 24, held(13, 24))
    assert move(24, *pool) == []
    assert move(24, *pool, policy=PlannerPolicy(headroom_bytes=0, move_gain=0.05)) == [
        ("C", "LOAD", 12, 13)
    ]


def test_a_boundary_goes_no_further_than_memory_allows() -> None:
    pool = worker("B", 14, held(0, 12), speed=4.0), worker("C", 16, held(12, 24))
    policy = PlannerPolicy(headroom_bytes=0, move_gain=0.1)
    assert move(24, *pool, policy=policy) == [("B", "LOAD", 12, 14)]


def test_a_cooling_worker_loads_nothing_but_may_drop() -> None:
    fast = worker("B", 16, held(0, 12), speed=2.0, cooling_until=NOW + 1)
    assert move(24, fast, worker("C", 16, held(12, 24))) == []
    slow = worker("C", 16, held(12, 24), cooling_until=NOW + 1)
    assert trim(24, worker("B", 16, held(0, 16), speed=2.0), slow) == [("C", "DROP", 12, 16)]


def test_a_worker_bound_to_layer_zero_never_gives_it_away() -> None:
    pool = worker("head", 12, held(0, 4), bound=True), worker("b", 12, held(4, 12), speed=9.0)
    assert move(12, *pool) == [("b", "LOAD", 1, 4)]


def test_the_trim_after_a_leave_balances_what_is_left() -> None:
    pool = worker("second", 22, held(14, 28)), worker("third", 22, held(0, 22))
    assert trim(28, *pool) == [("third", "DROP", 14, 22)]


def test_a_replica_beside_an_exact_chain_is_left_alone() -> None:
    pool = (
        worker("first", 22, held(0, 14)),
        worker("second", 22, held(14, 28)),
        worker("third", 22, held(0, 22)),
    )
    assert trim(28, *pool) == []
    assert move(28, *pool) == []


def test_a_worker_that_holds_everything_is_not_split() -> None:
    assert move(6, worker("all", 6, held(0, 6)), worker("b", 4, held(0, 4), speed=9.0)) == []


def test_with_several_boundaries_out_of_place_one_moves_at_a_time() -> None:
    pool = (
        worker("a", 24, held(0, 4)),
        worker("b", 24, held(4, 12)),
        worker("c", 24, held(12, 24)),
    )
    assert move(24, *pool) == [("b", "LOAD", 12, 14)]
