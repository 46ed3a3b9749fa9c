from meshnet_common.protocol.bodies import SEGMENT_FILL
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.arrivals import Arrivals, Arrived
from meshnet_worker.engine.scheduler import Lane
from meshnet_worker.engine_port import RunSegment

LANE = Lane(0, ShardRange(0, 2))


def segment(session: int, start: int = 0, flags: int = 0) -> Arrived:
    return Arrived(RunSegment(session, (1, 0), start, 4, flags), bytes([session, start]))


def drained(arrivals: Arrivals) -> list[Arrived]:
    arrived = []
    while arrivals.waiting:
        arrived += arrivals.next_batch(lambda _lane: 64)[1]
    return arrived


def test_a_batch_gives_back_what_came_with_its_segments() -> None:
    arrivals = Arrivals()
    for session in (1, 2):
        arrivals.add(LANE, segment(session))
    assert drained(arrivals) == [segment(1), segment(2)]


def test_segments_that_are_held_back_keep_their_order() -> None:
    arrivals = Arrivals()
    for session, start in ((1, 0), (2, 0), (1, 4)):
        arrivals.hold_back(segment(session, start))
    assert drained(arrivals) == []
    assert arrivals.take_ready(lambda session: session == 1) == [segment(1), segment(1, 4)]
    assert arrivals.take_ready(lambda _session: True) == [segment(2)]
    assert arrivals.take_ready(lambda _session: True) == []


def test_what_is_forgotten_neither_runs_nor_is_held_back() -> None:
    arrivals = Arrivals()
    arrivals.add(LANE, segment(1))
    arrivals.add(LANE, segment(2))
    arrivals.hold_back(segment(1, 4))
    arrivals.forget(1)
    assert arrivals.take_ready(lambda _session: True) == []
    assert drained(arrivals) == [segment(2)]


def test_a_fill_waits_behind_the_others() -> None:
    arrivals = Arrivals()
    arrivals.add(LANE, segment(1, flags=SEGMENT_FILL))
    arrivals.add(LANE, segment(2))
    assert {one.command.session for one in drained(arrivals)} == {1, 2}
