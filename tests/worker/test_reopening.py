"""A Hop whose Session is opened again, on a mended Route or on another one."""

import msgspec
import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import Epoch, ErrorBody, OpenBody, OpenedBody
from meshnet_common.protocol.sampling import History
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.admission import Admission
from meshnet_worker.engine_port import ArmSession
from meshnet_worker.hops import Hops
from tests.common.builders import NOW, hop, ticket
from tests.worker.builders import GREEDY, RecordingRoom

HEAD = "w0"


class Reopened:
    """The Hop w1 of the Route w0, w1, w2, with a Session that holds three positions."""

    def __init__(self) -> None:
        self.recording = RecordingRoom("w1")
        self.hops = Hops(self.recording.room)
        self.admission = Admission(self.recording.room, self.hops)
        self.open(route())
        (session,) = self.recording.sessions
        session.held = 3
        self.first = session.engine_session
        self.recording.kept.add(self.first, 0, 2, bytes(8))
        self.recording.sent.clear()

    def open(self, claims: RouteTicket, positions: int = 20, rollback: int = 0) -> None:
        body = OpenBody(ticket="signed", max_positions=positions, rollback=rollback)
        self.admission.open(claims, body)

    @property
    def engine_sessions(self) -> list[int]:
        return [session.engine_session for session in self.recording.sessions]

    @property
    def onward(self) -> list[tuple[str, OpenBody]]:
        return [(to, body) for to, body in self.recording.sent if isinstance(body, OpenBody)]

    @property
    def refusals(self) -> list[tuple[str, tuple[int, int] | None]]:
        bodies = self.recording.bodies_to(HEAD)
        return [(body.code, body.epoch) for body in bodies if isinstance(body, ErrorBody)]


def route(
    incarnation: int = 1, tail: str = "w2", start: int = 1, end: int = 3, **facts: float
) -> RouteTicket:
    hops = (hop("w0", 0, start), hop("w1", start, end), hop(tail, end, 4))
    return msgspec.structs.replace(ticket(*hops, incarnation=incarnation), **facts)


def test_the_same_layers_keep_what_they_hold_and_say_so_down_the_new_route() -> None:
    one = Reopened()
    one.open(route(incarnation=2, tail="w7"))
    assert one.engine_sessions == [one.first]
    ((target, body),) = one.onward
    assert (target, body.held, body.kept) == ("w7", (3,), (2,))


def test_other_layers_begin_anew_and_leave_nothing_behind() -> None:
    one = Reopened()
    one.open(route(incarnation=2, end=2))
    assert one.engine_sessions not in ([], [one.first])
    ((_, body),) = one.onward
    assert (body.held, body.kept) == ((0,), (0,))
    assert one.recording.kept.size_bytes == 0
    assert one.recording.kv.free_bytes == one.recording.kv_bytes - 20 * 10


def test_what_a_closed_session_sent_is_forgotten() -> None:
    one = Reopened()
    one.hops.let_go("s1")
    assert one.recording.kept.size_bytes == 0


def test_a_running_session_is_opened_again_however_old_its_ticket_is() -> None:
    one = Reopened()
    one.recording.clock.advance(100_000)
    one.open(route(), rollback=1)
    assert (one.engine_sessions, len(one.onward)) == ([one.first], 1)


def test_a_fresh_route_needs_a_fresh_ticket() -> None:
    one = Reopened()
    one.open(route(incarnation=2, expires_at=NOW - 1))
    assert one.refusals == [("bad_ticket", (2, 0))]
    assert one.onward == []


def test_a_refused_reopening_is_told_in_its_own_epoch_and_costs_nothing_that_is_held() -> None:
    one = Reopened()
    one.recording.shards.leaving = True
    one.open(route(incarnation=2))
    assert one.refusals == [("draining", (2, 0))]
    (session,) = one.recording.sessions
    assert (session.held, session.opening) == (3, (1, 0))


@pytest.mark.parametrize("incarnation", [1, 2], ids=["growing", "opened again"])
def test_no_reservation_goes_beyond_what_the_ticket_allows(incarnation: int) -> None:
    one = Reopened()
    (session,) = one.recording.sessions
    session.ticket = msgspec.structs.replace(session.ticket, max_positions=30)
    one.open(route(incarnation, max_positions=30), positions=31)
    assert [code for code, _ in one.refusals] == ["bad_ticket"]
    assert one.recording.kv.free_bytes >= one.recording.kv_bytes - 20 * 20


def test_a_first_opening_beyond_what_the_ticket_allows_allocates_nothing() -> None:
    recording = RecordingRoom("w1")
    admission = Admission(recording.room, Hops(recording.room))
    body = OpenBody(ticket="signed", max_positions=31)
    admission.open(route(max_positions=30), body)
    assert (len(recording.sessions), recording.commands) == (0, [])
    assert recording.kv.free_bytes == recording.kv_bytes
    (refusal,) = recording.bodies_to(HEAD)
    assert isinstance(refusal, ErrorBody)
    assert "allows 30 positions, not 31" in refusal.message


def test_a_session_with_a_new_head_is_no_orphan_any_more() -> None:
    one = Reopened()
    (session,) = one.recording.sessions
    one.hops.on_peer_lost(WorkerId(HEAD), "refused")
    assert session.is_orphan
    one.open(route(incarnation=2))
    assert not session.is_orphan


class ReopenedTail:
    """The Tail Worker w1 of the Route w0, w1, with a Session that has drawn."""

    def __init__(self) -> None:
        self.recording = RecordingRoom("w1")
        self.admission = Admission(self.recording.room, Hops(self.recording.room))
        self.say_how(0)
        self.open(0)
        self.recording.sent.clear()

    def say_how(self, rollback: int, *answer_ids: int) -> None:
        history = History(answer_start=3, answer_ids=answer_ids)
        body = OpenBody(
            ticket="t", max_positions=9, sampling=GREEDY, history=history, rollback=rollback
        )
        self.admission.arm(ticket(), body)

    def open(self, rollback: int) -> None:
        body = OpenBody(ticket="t", max_positions=9, rollback=rollback)
        self.admission.open(ticket(), body)

    @property
    def welcomes(self) -> list[Epoch]:
        return [b.epoch for b in self.recording.bodies_to(HEAD) if isinstance(b, OpenedBody)]

    @property
    def told(self) -> list[tuple[Epoch, tuple[int, ...]]]:
        """The openings of which the engine heard, with the answer by then."""
        arms = [c for c, _ in self.recording.commands if isinstance(c, ArmSession)]
        return [(arm.opening, arm.history.answer_ids) for arm in arms if arm.history]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_tail_that_is_opened_again_waits_for_the_answer_by_then(is_first: bool) -> None:
    tail = ReopenedTail()
    if is_first:
        tail.say_how(1, 7, 8)
        tail.open(1)
    else:
        tail.open(1)
        assert tail.welcomes == []
        tail.say_how(1, 7, 8)
    assert tail.welcomes == [(1, 1)]
    assert tail.told == [((1, 0), ()), ((1, 1), (7, 8))]


def test_what_a_tail_was_told_for_another_opening_is_not_taken() -> None:
    tail = ReopenedTail()
    tail.say_how(1, 7)
    tail.open(2)
    tail.say_how(1, 7)
    assert (tail.welcomes, tail.told) == ([], [((1, 0), ())])
    tail.say_how(2, 7, 8)
    assert (tail.welcomes, tail.told[1:]) == ([(1, 2)], [((1, 2), (7, 8))])


def test_a_tail_that_is_told_twice_counts_the_answer_itself() -> None:
    tail = ReopenedTail()
    tail.say_how(0)
    tail.open(0)
    assert tail.told == [((1, 0), ())]
