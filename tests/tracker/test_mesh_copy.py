from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.mesh_copy import MeshCopy
from meshnet_tracker.planning.snapshot import Demand, HeldShard, Holding, WorkerView
from meshnet_tracker.store.snapshots import MeshChanges, MeshNumbers, MeshSettings
from meshnet_tracker.store.words import Load
from tests.tracker.builders import MODEL, preset


def load_of(sessions: int) -> Load:
    return Load(sessions, queued=sessions + 1, kv_bytes_free=sessions + 2)


NAMES = st.sampled_from([WorkerId(f"w{number}") for number in range(6)])
SESSIONS = st.integers(0, 2)
CHANGES = st.lists(st.tuples(NAMES, st.none() | SESSIONS | SESSIONS.map(load_of)), max_size=20)


def view_of(worker_id: str, sessions: int = 0) -> WorkerView:
    return WorkerView(
        worker_id=WorkerId(worker_id),
        url=f"http://{worker_id}:1",
        vram_bytes=1000,
        speed=1.0,
        quantizations=frozenset({"bfloat16"}),
        held=(HeldShard(MODEL, ShardRange(0, 6), Holding.READY),),
        sessions=sessions,
    )


def changes_of(
    *views: WorkerView,
    gone: tuple[str, ...] = (),
    settings: MeshSettings | None = None,
    is_whole: bool = False,
) -> MeshChanges:
    workers: dict[WorkerId, WorkerView | None] = {view.worker_id: view for view in views}
    workers |= {WorkerId(name): None for name in gone}
    return MeshChanges(MeshNumbers(7, 3), 1, workers, {}, settings, is_whole)


def load_changes(worker_id: WorkerId, load: Load) -> MeshChanges:
    return MeshChanges(MeshNumbers(7, 3), 1, {}, {worker_id: load}, None)


@given(CHANGES)
def test_a_copy_is_what_the_changes_make_of_it(
    told: list[tuple[WorkerId, int | Load | None]],
) -> None:
    copy, expected = MeshCopy(), dict[WorkerId, WorkerView]()
    for worker_id, change in told:
        match change:
            case None:
                expected.pop(worker_id, None)
                copy.apply(changes_of(gone=(worker_id,)))
            case Load() as load:
                if worker_id in expected:
                    expected[worker_id] = replace(expected[worker_id], **load._asdict())
                copy.apply(load_changes(worker_id, load))
            case int() as sessions:
                expected[worker_id] = view_of(worker_id, sessions)
                copy.apply(changes_of(expected[worker_id]))
        workers = tuple(expected[name] for name in sorted(expected))
        assert copy.snapshot().workers == workers
        assert tuple(map(copy.routes.worker, copy.routes.names())) == workers


def test_a_worker_of_whom_nothing_changed_keeps_its_view_and_the_mesh_its_snapshot() -> None:
    copy = MeshCopy()
    copy.apply(changes_of(view_of("w1"), view_of("w2")))
    before = copy.snapshot()
    copy.apply(changes_of(view_of("w1")))
    assert copy.snapshot() is before


def test_what_a_worker_still_holds_stays_the_same_object() -> None:
    copy = MeshCopy()
    copy.apply(changes_of(view_of("w1")))
    (before,) = copy.snapshot().workers
    copy.apply(changes_of(view_of("w1", sessions=3)))
    (after,) = copy.snapshot().workers
    assert (after.sessions, after.held is before.held) == (3, True)


def test_of_a_whole_mesh_nobody_else_is_left() -> None:
    copy = MeshCopy()
    copy.apply(changes_of(view_of("w1"), view_of("w2")))
    copy.apply(changes_of(view_of("w2"), view_of("w3"), is_whole=True))
    assert [view.worker_id for view in copy.snapshot().workers] == ["w2", "w3"]


def test_drains_are_told_of_workers_that_are_known_and_that_come() -> None:
    drained = MeshSettings((), (), frozenset({WorkerId("w1"), WorkerId("w2")}))
    nobody = MeshSettings((), (), frozenset())
    copy = MeshCopy()
    copy.apply(changes_of(view_of("w1")))
    copy.apply(changes_of(settings=drained))
    copy.apply(changes_of(view_of("w2"), view_of("w3")))
    assert [view.retiring for view in copy.snapshot().workers] == [True, True, False]
    copy.apply(changes_of(settings=nobody))
    assert not any(view.retiring for view in copy.snapshot().workers)


def test_demand_is_added_to_the_same_mesh() -> None:
    copy = MeshCopy()
    demand = (Demand(MODEL, 2.0),)
    assert copy.snapshot(demand).demand == demand
    assert copy.snapshot().demand == ()
    assert copy.numbers == MeshNumbers()


def test_what_serves_is_told_anew_when_presets_change() -> None:
    copy = MeshCopy()
    other = replace(MODEL, revision="before")
    tiny = MeshSettings((preset().preset,), pins=(), drained=frozenset())
    shard = HeldShard(MODEL, ShardRange(0, 6), Holding.READY, "before")
    copy.apply(changes_of(replace(view_of("w1"), held=(shard,)), view_of("w2")))
    for settings, variant in ((tiny, other), (replace(tiny, presets=()), MODEL), (tiny, other)):
        copy.apply(changes_of(settings=settings))
        held = [view.held[0].variant for view in copy.snapshot().workers]
        assert held == [variant, MODEL]
