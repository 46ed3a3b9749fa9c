from collections.abc import Callable

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import Body, CloseBody, ErrorBody, OpenBody, OpenedBody
from meshnet_common.protocol.sampling import History
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_common.shard_range import ShardRange
from meshnet_worker.admission import CREDITS, Admission
from meshnet_worker.engine_port import ArmSession, ExtendSession, OpenSession
from meshnet_worker.hops import Hops
from tests.common.builders import NOW, hop, hops, preset, ticket, variant
from tests.worker.builders import GREEDY, RecordingRoom, hop_session, three_hops

POSITIONS = 20
HISTORY = History(answer_start=3, answer_ids=(7, 8), prompt_ids=(4, 5, 6))
KV_BYTES_PER_POSITION_AND_LAYER = 10


def opening(
    max_positions: int = POSITIONS,
    held: tuple[int, ...] = (),
    *,
    kept: tuple[int, ...] = (),
    draws: bool = False,
    rollback: int = 0,
    capacity: int = 0,
) -> OpenBody:
    return OpenBody(
        ticket="signed",
        max_positions=max_positions,
        held=held,
        kept=kept,
        sampling=GREEDY if draws else None,
        history=HISTORY if draws else None,
        rollback=rollback,
        capacity=capacity,
    )


def admission(recording: RecordingRoom) -> Admission:
    return Admission(recording.room, Hops(recording.room))


def refusal(recording: RecordingRoom) -> ErrorBody:
    ((target, body),) = recording.sent
    assert target == "w0"
    assert isinstance(body, ErrorBody)
    return body


def test_an_opening_reserves_kv_for_its_own_layers_and_goes_down_the_route() -> None:
    recording = RecordingRoom(worker_id="w1")
    admission(recording).open(three_hops(), opening(held=(5,)))
    session = recording.sessions.find("s1")
    assert session is not None
    assert (session.place, session.epoch, session.max_positions) == (1, (1, 0), POSITIONS)
    used = POSITIONS * 2 * KV_BYTES_PER_POSITION_AND_LAYER
    assert recording.kv.free_bytes == recording.kv_bytes - used
    assert recording.commands == [
        (OpenSession(session.engine_session, 0, 1, 3, POSITIONS), b""),
    ]
    ((target, onward),) = recording.sent
    assert (target, onward) == ("w2", opening(held=(5, 0), kept=(0,), capacity=250))


def test_hidden_states_arrive_everywhere_but_on_the_first_hop() -> None:
    sizes: list[int] = []
    for worker_id in ("w0", "w1"):
        recording = RecordingRoom(worker_id=worker_id)
        admission(recording).open(ticket(), opening())
        sizes.extend(session.row_bytes for session in recording.sessions)
    assert sizes == [0, 16]


@pytest.mark.parametrize("draws_first", [True, False])
def test_the_tail_welcomes_once_it_knows_how_to_draw(draws_first: bool) -> None:
    recording = RecordingRoom(worker_id="w1")
    rooms = admission(recording)
    steps: list[Callable[[], None]] = [
        lambda: rooms.open(ticket(), opening(held=(7,))),
        lambda: rooms.arm(ticket(), opening(draws=True)),
    ]
    first, second = reversed(steps) if draws_first else steps
    first()
    assert recording.sent == []
    second()
    ((target, welcome),) = recording.sent
    assert target == "w0"
    assert isinstance(welcome, OpenedBody)
    assert (welcome.session_id, welcome.epoch, welcome.credits) == ("s1", (1, 0), CREDITS)
    assert (welcome.held, welcome.kept) == ((7, 0), (0,))
    session = recording.sessions.find("s1")
    assert session is not None
    assert session.sampling == GREEDY
    assert recording.commands[1:] == [
        (ArmSession(session.engine_session, (1, 0), GREEDY, HISTORY), b"")
    ]


def test_a_worker_that_is_the_whole_route_welcomes_itself() -> None:
    recording = RecordingRoom()
    rooms = admission(recording)
    claims = ticket(hop("w0", 0, 4))
    rooms.arm(claims, opening(draws=True))
    rooms.open(claims, opening())
    ((target, welcome),) = recording.sent
    assert target == "w0"
    assert isinstance(welcome, OpenedBody)


def test_an_opening_for_more_positions_extends() -> None:
    recording = RecordingRoom()
    rooms = admission(recording)
    for positions in (POSITIONS, 2 * POSITIONS):
        rooms.open(ticket(), opening(positions))
    (session,) = recording.sessions
    assert session.max_positions == 2 * POSITIONS
    assert recording.commands[1:] == [(ExtendSession(session.engine_session, 2 * POSITIONS), b"")]
    used = 2 * POSITIONS * 2 * KV_BYTES_PER_POSITION_AND_LAYER
    assert recording.kv.free_bytes == recording.kv_bytes - used
    assert [target for target, _ in recording.sent] == ["w1", "w1"]


def test_an_opening_for_no_more_positions_changes_nothing() -> None:
    recording = RecordingRoom()
    rooms = admission(recording)
    for positions in (POSITIONS, POSITIONS - 5):
        rooms.open(ticket(), opening(positions))
    (session,) = recording.sessions
    assert session.max_positions == POSITIONS
    assert len(recording.commands) == 1


@pytest.mark.parametrize(
    ("recording", "claims", "code"),
    [
        pytest.param(RecordingRoom("w1", ready=None), ticket(), "not_serving", id="no Shard"),
        pytest.param(RecordingRoom("w1", ready=(0, 3)), ticket(), "not_serving", id="other Layers"),
        pytest.param(
            RecordingRoom("w1", model=preset(variant(quantization="bfloat16"))),
            ticket(),
            "not_serving",
            id="another Variant",
        ),
        pytest.param(
            RecordingRoom("w1", kv_bytes=19 * 40), ticket(), "kv_capacity", id="too small a pool"
        ),
        pytest.param(
            RecordingRoom("w1"), ticket(expires_at=NOW - 1), "bad_ticket", id="an expired ticket"
        ),
        pytest.param(RecordingRoom("w9"), ticket(), "bad_ticket", id="another Worker's ticket"),
        pytest.param(
            RecordingRoom("w1"),
            ticket(hop("w0", 0, 1), hop("w1", 1, 2), hop("w9", 2, 3), hop("w1", 3, 4)),
            "bad_ticket",
            id="a Route that comes here twice",
        ),
    ],
)
def test_a_refusal_names_the_hop_and_the_reason_and_keeps_nothing(
    recording: RecordingRoom, claims: RouteTicket, code: str
) -> None:
    admission(recording).open(claims, opening())
    body = refusal(recording)
    assert (body.session_id, body.code, body.worker_id) == ("s1", code, recording.worker_id)
    assert body.message
    assert len(recording.sessions) == 0
    assert recording.commands == []
    assert recording.kv.free_bytes == recording.kv_bytes


def test_layers_that_are_draining_take_no_new_session() -> None:
    recording = RecordingRoom("w1")
    shard = recording.shards.find("tiny", "float32")
    assert shard is not None
    shard.draining = ShardRange(3, 4)
    admission(recording).open(ticket(), opening())
    assert refusal(recording).code == "not_serving"


def test_a_worker_that_leaves_says_so_and_takes_no_new_session() -> None:
    recording = RecordingRoom("w1")
    recording.shards.leaving = True
    admission(recording).open(ticket(), opening())
    assert refusal(recording).code == "draining"
    assert len(recording.sessions) == 0


def test_an_expired_ticket_still_extends_a_running_session() -> None:
    recording = RecordingRoom()
    rooms = admission(recording)
    rooms.open(ticket(), opening())
    recording.clock.advance(1000)
    rooms.open(ticket(), opening(2 * POSITIONS))
    (session,) = recording.sessions
    assert session.max_positions == 2 * POSITIONS


def test_a_running_session_is_extended_while_its_layers_drain() -> None:
    recording = RecordingRoom()
    rooms = admission(recording)
    rooms.open(ticket(), opening())
    shard = recording.shards.find("tiny", "float32")
    assert shard is not None
    shard.draining = ShardRange(0, 4)
    rooms.open(ticket(), opening(2 * POSITIONS))
    assert [session.max_positions for session in recording.sessions] == [2 * POSITIONS]


def test_a_late_opening_revives_no_closed_session() -> None:
    recording = RecordingRoom()
    rooms, running = admission(recording), Hops(recording.room)
    rooms.open(ticket(), opening())
    running.close(CloseBody(session_id="s1", epoch=(1, 0)))
    rooms.open(ticket(), opening(2 * POSITIONS))
    assert len(recording.sessions) == 0
    assert recording.kv.free_bytes == recording.kv_bytes


def test_a_closed_session_may_be_opened_again_under_a_newer_route() -> None:
    recording = RecordingRoom()
    rooms, running = admission(recording), Hops(recording.room)
    rooms.open(ticket(), opening())
    running.close(CloseBody(session_id="s1", epoch=(1, 0)))
    rooms.open(ticket(incarnation=2), opening())
    assert [session.epoch for session in recording.sessions] == [(2, 0)]


def test_openings_come_from_the_previous_hop_and_drawing_from_the_head() -> None:
    rooms = admission(RecordingRoom(worker_id="w2"))
    senders = [WorkerId(f"w{place}") for place in range(4)]
    may_open = [s for s in senders if rooms.may_open(three_hops(), opening(), s)]
    may_arm = [s for s in senders if rooms.may_open(three_hops(), opening(draws=True), s)]
    assert (may_open, may_arm) == (["w1"], ["w0"])


def test_the_first_hop_is_opened_by_itself() -> None:
    rooms = admission(RecordingRoom(worker_id="w0"))
    assert rooms.may_open(ticket(), opening(), WorkerId("w0"))
    assert not rooms.may_open(ticket(), opening(), WorkerId("w1"))


def test_an_outlet_hears_the_welcome_and_nothing_goes_down_the_route() -> None:
    recording = RecordingRoom()
    heard: list[Body] = []
    admission(recording).open(ticket(), opening(), heard.append)
    assert recording.sent == []
    (welcome,) = heard
    assert isinstance(welcome, OpenedBody)


def test_an_outlet_hears_its_own_refusal() -> None:
    recording = RecordingRoom(kv_bytes=0)
    heard: list[Body] = []
    admission(recording).open(ticket(), opening(), heard.append)
    assert recording.sent == []
    (error,) = heard
    assert isinstance(error, ErrorBody)
    assert error.code == "kv_capacity"


def test_the_outlet_of_an_extension_hears_its_answer() -> None:
    recording = RecordingRoom()
    first: list[Body] = []
    second: list[Body] = []
    rooms = admission(recording)
    rooms.open(ticket(), opening(), first.append)
    rooms.open(ticket(), opening(2 * POSITIONS), second.append)
    assert [len(first), len(second)] == [1, 1]


def test_an_outlet_cannot_take_over_a_session_of_the_route() -> None:
    recording = RecordingRoom()
    heard: list[Body] = []
    rooms = admission(recording)
    rooms.open(ticket(), opening())
    rooms.open(ticket(), opening(), heard.append)
    (error,) = heard
    assert isinstance(error, ErrorBody)
    (session,) = recording.sessions
    assert session.outlet is None


def test_sessions_of_other_places_are_left_alone() -> None:
    recording = RecordingRoom(worker_id="w1")
    other = hop_session(ticket(*hops(1, 3), session_id="s2"), place=1, engine_session=99)
    recording.sessions.add(other)
    admission(recording).open(ticket(), opening())
    assert recording.sessions.find("s2") is other
