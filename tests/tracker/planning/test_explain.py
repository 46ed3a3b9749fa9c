from dataclasses import replace

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.explain import Explanation, explain
from meshnet_tracker.planning.snapshot import Holding, MeshSnapshot, Pin
from tests.tracker.planning.meshes import KEY, NO_HEADROOM, NOW, held, mesh, plan, worker


def explained(snapshot: MeshSnapshot) -> Explanation:
    return explain(snapshot, NO_HEADROOM, NOW)


def test_it_names_what_the_tracker_would_order_and_each_has_its_reason() -> None:
    snapshot = mesh(10, worker("a", 6, held(0, 6)), worker("b", 6))
    said = explained(snapshot)
    assert said.directives == plan(snapshot)
    assert all(each.why for each in said.directives)
    assert said.variants[0].gaps == (ShardRange(6, 10),)
    assert said.variants[0].open_gaps == ()
    assert not said.remarks


def test_a_gap_that_stays_is_explained_by_the_room_that_is_missing() -> None:
    (remark,) = explained(mesh(10, worker("a", 6, held(0, 6)))).remarks
    assert "[6, 10)" in remark
    assert "4 Layers are missing, and there is room for 0 more" in remark


def test_a_worker_that_cools_down_is_named_as_what_a_gap_waits_for() -> None:
    cooling = worker("b", 6, cooling_until=NOW + 30)
    remarks = explained(mesh(10, worker("a", 6, held(0, 6)), cooling)).remarks
    assert any("1 Worker(s) with room cool down" in each for each in remarks)
    assert "b cools down for 30 s more: its last load failed or ran out." in remarks


def test_what_is_in_flight_is_said_to_come() -> None:
    loading = worker("b", 6, held(6, 10, Holding.LOADING))
    (variant,) = explained(mesh(10, worker("a", 6, held(0, 6)), loading)).variants
    assert variant.why_not_more == "what is missing is on its way"


def test_a_pin_that_is_ignored_is_explained() -> None:
    pin = Pin(WorkerId("a"), KEY, ShardRange(0, 8))
    snapshot = replace(mesh(10, worker("a", 6, held(0, 6))), pins=(pin,))
    assert any("is ignored: it takes" in each for each in explained(snapshot).remarks)


def test_a_worker_that_cannot_be_emptied_yet_is_named() -> None:
    retiring = replace(worker("a", 6, held(0, 6)), retiring=True)
    remarks = explained(mesh(6, retiring)).remarks
    assert "a is to be emptied, and nobody else is ready to serve it all." in remarks


def test_the_same_snapshot_gives_the_same_lines_in_any_order() -> None:
    pool = worker("a", 6, held(0, 6)), worker("b", 2), worker("c", 1)
    assert explained(mesh(10, *pool)).lines == explained(mesh(10, *reversed(pool))).lines
