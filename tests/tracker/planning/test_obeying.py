from dataclasses import replace

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.obeying import obey
from meshnet_tracker.planning.snapshot import (
    Holding,
    MeshSnapshot,
    Pin,
    RebalanceDirective,
    WorkerView,
)
from tests.tracker.planning.meshes import KEY, NO_HEADROOM, NOW, held, mesh, runs, settled, worker
from tests.tracker.planning.meshes import told as shown


def pinned(layers: int, start: int, end: int, *workers: WorkerView) -> MeshSnapshot:
    pin = Pin(WorkerId("a"), KEY, ShardRange(start, end))
    return replace(mesh(layers, *workers), pins=(pin,))


def orders(snapshot: MeshSnapshot) -> list[RebalanceDirective]:
    draft = Draft.of(snapshot, NO_HEADROOM, NOW)
    obey(draft)
    assert all(each.reason is DirectiveReason.OPERATOR for each in draft.directives)
    return draft.directives


def test_a_pinned_worker_loads_its_layers_first_if_they_fit() -> None:
    snapshot = pinned(8, 2, 6, worker("a", 8, held(0, 3)), worker("b", 8, held(0, 8)))
    assert shown(orders(snapshot)) == [("a", "LOAD", 3, 6)]


def test_what_else_it_holds_is_dropped_once_others_serve_it() -> None:
    alone = pinned(8, 2, 6, worker("a", 8, held(0, 6)), worker("b", 8, held(4, 8)))
    assert orders(alone) == []
    served = pinned(8, 2, 6, worker("a", 8, held(0, 6)), worker("b", 8, held(0, 8)))
    assert shown(orders(served)) == [("a", "DROP", 0, 2)]


def test_a_worker_without_room_for_its_pin_makes_room_first() -> None:
    snapshot = pinned(8, 4, 8, worker("a", 4, held(0, 4)), worker("b", 8, held(0, 8)))
    assert shown(orders(snapshot)) == [("a", "DROP", 0, 4)]
    end, _ = settled(snapshot)
    assert runs(end)["a"] == (4, 8)


def test_layers_that_only_a_pinned_worker_serves_are_loaded_elsewhere_before_it_drops_them() -> (
    None
):
    end, _ = settled(pinned(8, 4, 8, worker("a", 4, held(0, 4)), worker("b", 8)))
    assert runs(end)["a"] == (4, 8)
    assert runs(end)["b"][0] == 0


def test_a_worker_with_something_in_flight_or_that_cools_down_is_left_alone() -> None:
    loading = worker("a", 8, held(2, 4, Holding.LOADING))
    assert orders(pinned(8, 2, 6, loading)) == []
    assert orders(pinned(8, 2, 6, worker("a", 8, cooling_until=NOW + 1))) == []


def test_a_worker_that_is_emptied_gets_nothing_and_drops_what_others_serve() -> None:
    emptied = replace(worker("a", 8, held(0, 8)), retiring=True)
    assert orders(mesh(8, emptied)) == []
    end, _ = settled(mesh(8, emptied, worker("b", 8)))
    assert runs(end) == {"b": (0, 8)}
