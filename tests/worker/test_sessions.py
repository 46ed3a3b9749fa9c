import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import Epoch, Segment
from meshnet_common.protocol.sampling import History
from meshnet_worker import sessions
from meshnet_worker.sessions import Arms, HopSession, SegmentError, SessionTable
from tests.common.builders import NOW, hops, segment, ticket
from tests.worker.builders import GREEDY, LEASE_SECONDS, hop_session, three_hops

SEGMENTS = st.builds(
    segment,
    start=st.integers(0, 12),
    tokens=st.integers(1, 5),
    epoch=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
ARMS = Arms(GREEDY, History(answer_start=3, answer_ids=(7,)))


def held_until(held: int, epoch: Epoch = (1, 0)) -> HopSession:
    session = hop_session(epoch=epoch)
    session.held = held
    return session


def test_a_segment_that_continues_is_adopted() -> None:
    session = held_until(10)
    assert session.accept(segment(10, 3))
    assert (session.held, session.epoch) == (13, (1, 0))


@pytest.mark.parametrize("start", [0, 10, 50])
def test_a_lower_epoch_is_dropped_unread_wherever_it_starts(start: int) -> None:
    session = held_until(10, epoch=(2, 1))
    assert not session.accept(segment(start, epoch=(1, 9)))
    assert not session.accept(segment(start, epoch=(2, 0)))
    assert (session.held, session.epoch) == (10, (2, 1))


def test_a_duplicate_is_dropped() -> None:
    session = held_until(10)
    assert not session.accept(segment(9))
    assert session.held == 10


def test_a_higher_epoch_truncates_to_its_start_and_is_adopted() -> None:
    session = held_until(10)
    assert session.accept(segment(4, 2, epoch=(1, 1)))
    assert (session.held, session.epoch) == (6, (1, 1))
    assert not session.accept(segment(10))


@pytest.mark.parametrize("epoch", [(1, 0), (1, 1), (2, 0)])
def test_a_gap_is_a_fault_that_changes_nothing(epoch: Epoch) -> None:
    session = held_until(10)
    with pytest.raises(SegmentError):
        session.accept(segment(11, epoch=epoch))
    assert (session.held, session.epoch) == (10, (1, 0))


def test_a_segment_beyond_the_reservation_is_a_fault_that_changes_nothing() -> None:
    session = held_until(98)
    with pytest.raises(SegmentError):
        session.accept(segment(98, 3))
    assert session.held == 98
    assert session.accept(segment(98, 2))


@given(st.lists(SEGMENTS, max_size=30))
def test_no_interleaving_makes_held_wrong(segments: list[Segment]) -> None:
    session = hop_session(max_positions=14, epoch=(0, 0))
    writers: list[Epoch] = []  # who wrote each position that the Hop should hold
    for run in segments:
        try:
            is_adopted = session.accept(run)
        except SegmentError:
            is_adopted = False
        if is_adopted:
            assert run.start <= len(writers)
            writers[run.start :] = [run.epoch] * run.tokens
        assert session.held == len(writers) <= session.max_positions
        # An old writer never comes after a newer one, nor writes again once one has come.
        assert writers == sorted(writers)
        assert all(epoch <= session.epoch for epoch in writers)


def test_a_hop_knows_what_lies_beside_it() -> None:
    route = three_hops()
    first, middle, last = (hop_session(route, place) for place in range(3))
    assert (first.previous, first.following) == (None, route.hops[1])
    assert (middle.previous, middle.following) == (route.hops[0], route.hops[2])
    assert (last.previous, last.following) == (route.hops[1], None)
    assert [session.is_tail for session in (first, middle, last)] == [False, False, True]
    assert [session.ends_model for session in (first, middle, last)] == [False, False, True]


@pytest.mark.parametrize(("place", "sender"), [(0, "w0"), (1, "w0"), (2, "w1")])
def test_activations_count_only_from_the_previous_hop(place: int, sender: str) -> None:
    session = hop_session(three_hops(), place)
    senders = [worker for worker in ("w0", "w1", "w2", "w9") if session.may_send(WorkerId(worker))]
    assert senders == [sender]


def test_a_hop_uses_the_workers_beside_it_and_its_head() -> None:
    session = hop_session(ticket(*hops(1, 1, 1, 1, 1)), place=3)
    used = [place for place in range(5) if session.uses(WorkerId(f"w{place}"))]
    assert used == [0, 2, 4]


def test_a_session_is_found_by_both_of_its_names_until_it_is_removed() -> None:
    table = SessionTable(LEASE_SECONDS)
    session = hop_session(engine_session=table.new_engine_session())
    table.add(session)
    assert table.find("s1") is session
    assert table.of_engine(session.engine_session) is session
    assert (len(table), list(table)) == (1, [session])
    table.remove(session, NOW)
    assert table.find("s1") is None
    assert table.of_engine(session.engine_session) is None
    assert len(table) == 0


def test_engine_sessions_are_never_numbered_twice() -> None:
    table = SessionTable(LEASE_SECONDS)
    numbers = [table.new_engine_session() for _ in range(5)]
    assert len(set(numbers)) == 5


def test_a_removed_session_leaves_a_tombstone_for_one_lease() -> None:
    table = SessionTable(LEASE_SECONDS)
    session = hop_session()
    table.add(session)
    assert not table.is_buried("s1")
    table.remove(session, NOW)
    table.expired(NOW + LEASE_SECONDS - 1)
    assert table.is_buried("s1")
    table.expired(NOW + LEASE_SECONDS)
    assert not table.is_buried("s1")


def test_a_session_that_nobody_feeds_expires_after_its_lease() -> None:
    table = SessionTable(LEASE_SECONDS)
    session = hop_session()
    table.add(session)
    assert table.expired(NOW + LEASE_SECONDS - 1) == ()
    assert table.expired(NOW + LEASE_SECONDS) == (session,)


def test_sampling_that_came_first_waits_for_its_session_once() -> None:
    table = SessionTable(LEASE_SECONDS)
    table.arm("s1", ARMS, (1, 0), NOW)
    assert table.armed("s2", (1, 0)) is None
    assert table.armed("s1", (1, 0)) == ARMS
    assert table.armed("s1", (1, 0)) is None


def test_sampling_that_came_for_a_later_opening_waits_for_that_one() -> None:
    table = SessionTable(LEASE_SECONDS)
    table.arm("s1", ARMS, (2, 0), NOW)
    table.arm("s1", Arms(GREEDY), (1, 9), NOW)
    assert table.armed("s1", (1, 9)) is None
    assert table.armed("s1", (2, 0)) == ARMS


def test_sampling_that_came_for_an_earlier_opening_is_forgotten() -> None:
    table = SessionTable(LEASE_SECONDS)
    table.arm("s1", ARMS, (2, 0), NOW)
    assert table.armed("s1", (2, 1)) is None
    assert table.armed("s1", (2, 0)) is None


def test_sampling_that_waits_for_nobody_is_forgotten_after_a_lease() -> None:
    table = SessionTable(LEASE_SECONDS)
    table.arm("s1", ARMS, (1, 0), NOW)
    table.expired(NOW + LEASE_SECONDS)
    assert table.armed("s1", (1, 0)) is None


@pytest.mark.parametrize(
    ("start", "epoch", "is_rollback"),
    [(4, (1, 1), True), (10, (1, 1), False), (4, (1, 0), False), (4, (0, 9), False)],
)
def test_only_a_higher_epoch_that_starts_below_what_is_held_rolls_back(
    start: int, epoch: Epoch, is_rollback: bool
) -> None:
    assert held_until(10).is_rolled_back_by(segment(start, epoch=epoch)) == is_rollback


def test_a_tombstone_is_for_its_epoch_and_those_before_it() -> None:
    table = SessionTable(LEASE_SECONDS)
    table.bury("s1", (2, 1), NOW)
    table.bury("s1", (1, 9), NOW)
    epochs: list[Epoch] = [(1, 9), (2, 1), (2, 2), (3, 0)]
    assert [table.is_buried("s1", epoch) for epoch in epochs] == [True, True, False, False]


def test_who_may_still_hold_a_buried_session_hears_of_its_closing_once() -> None:
    table = SessionTable(LEASE_SECONDS)
    table.bury("s1", (1, 0), NOW, three_hops().hops[2])
    table.bury("s1", (1, 1), NOW)
    assert [table.take_holder_after("s1"), table.take_holder_after("s1")] == [
        three_hops().hops[2],
        None,
    ]
    assert table.is_buried("s1", (1, 1))


def test_strangers_cannot_fill_the_graveyard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_TOMBSTONES", 3)
    table = SessionTable(LEASE_SECONDS)
    for number in (1, 2, 3, 1, 4):
        table.bury(f"s{number}", (1, 0), NOW)
    assert [table.is_buried(f"s{number}", (1, 0)) for number in (1, 2, 3, 4)] == [
        True,
        False,
        True,
        True,
    ]
