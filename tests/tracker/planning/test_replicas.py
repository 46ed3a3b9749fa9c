from meshnet_common.protocol.messages import DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.replicas import Need
from tests.tracker.planning.meshes import NO_HEADROOM, NOW, candidate, held, mesh, worker


def need_of(*sessions: int) -> Need:
    """Read a Mesh of two halves of 4 Layers with so many Sessions each."""
    halves = [
        worker(f"{index}", 4, held(4 * index, 4 * index + 4), sessions=count)
        for index, count in enumerate(sessions)
    ]
    draft = Draft.of(mesh(8, *halves), NO_HEADROOM, NOW)
    return Need(draft, draft.variants[0])


def test_the_hotter_half_is_wanted_while_there_are_sessions() -> None:
    need = need_of(0, 3)
    assert need.best_for(candidate("a", 4)) == ShardRange(4, 8)
    assert need.reason is DirectiveReason.HOTSPOT


def test_while_nobody_generates_a_replica_is_for_redundancy() -> None:
    need = need_of(0, 0)
    assert need.best_for(candidate("a", 4)) == ShardRange(0, 4)
    assert need.reason is DirectiveReason.REDUNDANCY


def test_what_was_added_is_wanted_less() -> None:
    need = need_of(0, 0)
    need.add(ShardRange(0, 4), 1.0)
    assert need.best_for(candidate("a", 4)) == ShardRange(4, 8)


def test_a_worker_that_holds_no_layer_has_no_window() -> None:
    assert need_of(0, 0).best_for(candidate("a", 0)) is None
