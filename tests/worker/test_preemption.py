"""Who gives way when KV runs dry: the Session admitted last, when one opens as when one grows."""

from meshnet_common.protocol.bodies import CloseBody, ErrorBody, KvFigures, OpenBody, OpenedBody
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.admission import Admission
from meshnet_worker.engine_port import CloseSession, ExtendSession, OpenSession
from meshnet_worker.hops import Hops
from tests.common.builders import hop, ticket
from tests.worker.builders import GREEDY, RecordingRoom

BLOCKS = 100
BLOCK_BYTES = 40
"""One block of one position in each of four Layers."""


class Pooled:
    """A Head Worker with a hundred KV Blocks in each Layer."""

    def __init__(self, worker_id: str = "w0") -> None:
        self.recording = RecordingRoom(worker_id, kv_bytes=BLOCKS * BLOCK_BYTES)
        self.hops = Hops(self.recording.room)
        self.admission = Admission(self.recording.room, self.hops)

    def open(self, seq: int, positions: int, incarnation: int = 1, rollback: int = 0) -> None:
        body = OpenBody(ticket="signed", max_positions=positions, rollback=rollback)
        self.admission.open(claims(seq, incarnation), body)

    @property
    def open_ids(self) -> list[str]:
        return [session.session_id for session in self.recording.sessions]

    @property
    def faults(self) -> list[tuple[str, str]]:
        sent = self.recording.bodies_to("w0")
        return [(body.session_id, body.code) for body in sent if isinstance(body, ErrorBody)]


def claims(seq: int, incarnation: int = 1) -> RouteTicket:
    return ticket(session_id=f"s{seq}", admission_seq=seq, incarnation=incarnation)


def test_an_older_session_that_opens_takes_the_place_of_the_youngest() -> None:
    pooled = Pooled()
    for seq, positions in ((2, 40), (3, 40), (1, 50)):
        pooled.open(seq, positions)
    assert pooled.open_ids == ["s2", "s1"]
    assert pooled.faults == [("s3", "kv_preempted")]
    assert pooled.hops.preempted == 1


def test_an_older_session_that_grows_takes_the_place_of_the_youngest() -> None:
    pooled = Pooled()
    for seq, positions in ((1, 40), (2, 30), (3, 30), (1, 60)):
        pooled.open(seq, positions)
    assert pooled.open_ids == ["s1", "s2"]
    assert pooled.faults == [("s3", "kv_preempted")]
    kinds = [type(command) for command, _ in pooled.recording.commands]
    assert kinds == [OpenSession, OpenSession, OpenSession, CloseSession, ExtendSession]


def test_what_is_freed_for_an_older_session_is_told_once_it_has_it() -> None:
    pooled = Pooled()
    for seq, positions in ((1, 40), (2, 30), (3, 30)):
        pooled.open(seq, positions)
    # More weights leave half of the blocks; whoever hears of free ones takes them away.
    pooled.recording.lend(BLOCKS * BLOCK_BYTES // 2)
    pooled.recording.on_freed = pooled.recording.kv.settle
    pooled.open(1, 90)
    assert pooled.open_ids == ["s1"]
    assert pooled.faults == [("s3", "kv_preempted"), ("s2", "kv_preempted")]
    assert pooled.recording.kv.pools[0].blocks == 90


def test_who_gave_way_is_closed_on_the_rest_of_its_route() -> None:
    pooled = Pooled()
    for seq, positions in ((2, 60), (1, 60)):
        pooled.open(seq, positions)
    assert CloseBody(session_id="s2", epoch=(1, 0)) in pooled.recording.bodies_to("w1")


def test_a_youngest_session_that_cannot_grow_gives_way_itself() -> None:
    pooled = Pooled()
    for seq, positions in ((1, 60), (2, 40), (2, 50)):
        pooled.open(seq, positions)
    assert pooled.open_ids == ["s1"]
    (fault,) = (b for b in pooled.recording.bodies_to("w0") if isinstance(b, ErrorBody))
    assert (fault.session_id, fault.code, fault.epoch) == ("s2", "kv_preempted", (1, 0))
    assert fault.kv == KvFigures(needed=10, free=0, total=100, capacity=100)
    assert CloseBody(session_id="s2", epoch=(1, 0)) in pooled.recording.bodies_to("w1")
    assert pooled.hops.preempted == 1


def test_a_youngest_session_that_cannot_open_is_refused_with_the_numbers() -> None:
    pooled = Pooled()
    for seq, positions in ((1, 80), (2, 30)):
        pooled.open(seq, positions)
    assert pooled.open_ids == ["s1"]
    (refusal,) = (b for b in pooled.recording.bodies_to("w0") if isinstance(b, ErrorBody))
    assert refusal.code == "kv_exhausted"
    assert refusal.kv == KvFigures(needed=30, free=20, total=100, capacity=100)
    assert "needs 30 more" in refusal.message
    assert "20 of 100 are free" in refusal.message


def test_nobody_gives_way_where_that_would_not_help() -> None:
    pooled = Pooled()
    for seq, positions in ((1, 80), (3, 10), (2, 30)):
        pooled.open(seq, positions)
    assert pooled.open_ids == ["s1", "s3"]
    assert pooled.faults == [("s2", "kv_exhausted")]


def test_a_session_that_outgrows_empty_pools_is_told_so_for_good() -> None:
    pooled = Pooled()
    for positions in (60, BLOCKS + 1):
        pooled.open(1, positions)
    assert pooled.open_ids == []
    assert pooled.faults == [("s1", "kv_capacity")]
    assert pooled.recording.kv.free_bytes == pooled.recording.kv_bytes


def test_a_newer_opening_takes_over_what_the_one_before_held() -> None:
    for incarnation, rollback in ((2, 0), (1, 1)):
        pooled = Pooled()
        pooled.open(1, 60)
        pooled.open(1, 70, incarnation, rollback)
        (session,) = pooled.recording.sessions
        assert (session.opening, session.held) == ((incarnation, rollback), 0)
        assert pooled.recording.kv.free_bytes == (BLOCKS * 4 - 70 * 2) * 10
        assert not any(isinstance(body, CloseBody) for body in pooled.recording.bodies_to("w1"))


def test_an_older_opening_changes_nothing() -> None:
    pooled = Pooled()
    pooled.open(1, 60, incarnation=2)
    pooled.recording.sent.clear()
    pooled.open(1, 90)
    (session,) = pooled.recording.sessions
    assert (session.opening, session.max_positions) == ((2, 0), 60)
    assert pooled.recording.sent == []


def test_a_closing_that_overtakes_its_opening_leaves_nothing_behind() -> None:
    pooled = Pooled()
    pooled.hops.close(CloseBody(session_id="s1", epoch=(1, 0)))
    pooled.open(1, 60)
    assert pooled.open_ids == []
    pooled.open(1, 60, rollback=1)
    assert pooled.open_ids == ["s1"]


def test_drawing_for_a_newer_opening_waits_for_it() -> None:
    pooled = Pooled("w1")
    body = OpenBody(ticket="signed", max_positions=9, sampling=GREEDY, rollback=1)
    pooled.open(1, 9)
    pooled.admission.arm(claims(1), body)
    assert not any(isinstance(b, OpenedBody) for b in pooled.recording.bodies_to("w0"))
    pooled.open(1, 9, rollback=1)
    (welcome,) = (b for b in pooled.recording.bodies_to("w0") if isinstance(b, OpenedBody))
    assert welcome.epoch == (1, 1)


def test_the_welcome_tells_what_the_smallest_pools_of_the_route_could_hold() -> None:
    heard = []
    for capacity in (0, 70, 300):
        pooled = Pooled("w1")
        body = OpenBody(ticket="signed", max_positions=9, capacity=capacity)
        pooled.admission.arm(claims(1), OpenBody(ticket="t", max_positions=9, sampling=GREEDY))
        pooled.admission.open(claims(1), body)
        (welcome,) = (b for b in pooled.recording.bodies_to("w0") if isinstance(b, OpenedBody))
        heard.append(welcome.capacity)
    assert heard == [100, 70, 100]


def test_sessions_on_other_layers_are_left_alone() -> None:
    pooled = Pooled()
    other = ticket(hop("w0", 0, 1), hop("w1", 1, 4), session_id="s9", admission_seq=9)
    second = ticket(hop("w9", 0, 2), hop("w0", 2, 4), session_id="s8", admission_seq=8)
    for route in (other, second):
        pooled.admission.open(route, OpenBody(ticket="signed", max_positions=60))
    pooled.open(1, 80)
    assert pooled.open_ids == ["s8", "s1"]
