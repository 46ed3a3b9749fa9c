import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.waiting_room import (
    FIRST_BACK_OFF_SECONDS,
    LEAST_BACK_OFF_SECONDS,
    MOST_DOUBLINGS,
    GiveUp,
    Go,
    WaitingRoom,
    WaitUntil,
)
from tests.common.builders import ticket

DEADLINE_SECONDS = 60.0
LONG = FIRST_BACK_OFF_SECONDS * 2**MOST_DOUBLINGS


def claims(seq: int, quantization: str = "float32") -> RouteTicket:
    return ticket(session_id=f"s{seq}", admission_seq=seq, quantization=quantization)


@pytest.fixture
def room() -> WaitingRoom:
    return WaitingRoom(DEADLINE_SECONDS)


def test_who_comes_while_nobody_waits_may_go_at_once(room: WaitingRoom) -> None:
    room.arrive(claims(1), 0.0)
    assert (room.turn("s1", 0.0), len(room)) == (Go(), 0)


def test_who_was_refused_may_go_after_a_back_off(room: WaitingRoom) -> None:
    room.refused(claims(1), 0.0)
    turn = room.turn("s1", 0.0)
    assert isinstance(turn, WaitUntil)
    assert FIRST_BACK_OFF_SECONDS / 2 <= turn.moment <= FIRST_BACK_OFF_SECONDS
    assert room.turn("s1", turn.moment) == Go()


@given(st.integers(1, 10_000), st.integers(1, 40))
def test_the_back_off_grows_with_jitter_and_has_an_end(seq: int, refusals: int) -> None:
    room = WaitingRoom(DEADLINE_SECONDS)
    for _ in range(refusals):
        room.refused(claims(seq), 0.0)
    turn = room.turn(f"s{seq}", 0.0)
    assert isinstance(turn, WaitUntil)
    longest = min(LONG, FIRST_BACK_OFF_SECONDS * 2 ** (refusals - 1))
    assert longest / 2 <= turn.moment <= longest


def test_who_waits_for_different_sessions_waits_differently() -> None:
    moments = set()
    for seq in range(10):
        alone = WaitingRoom(DEADLINE_SECONDS)
        alone.refused(claims(seq), 0.0)
        moments.add(alone.turn(f"s{seq}", 0.0))
    assert len(moments) == 10


def test_only_the_one_admitted_first_has_its_turn(room: WaitingRoom) -> None:
    for seq in (3, 1, 2):
        room.refused(claims(seq), 0.0)
    assert [isinstance(room.turn(f"s{seq}", LONG), Go) for seq in (1, 2, 3)] == [True, False, False]
    room.leave("s1")
    assert [isinstance(room.turn(f"s{seq}", LONG), Go) for seq in (2, 3)] == [True, False]


def test_who_comes_later_waits_behind_those_of_its_variant_only(room: WaitingRoom) -> None:
    room.refused(claims(1), 0.0)
    room.arrive(claims(2), 0.0)
    room.arrive(claims(3, "bfloat16"), 0.0)
    assert isinstance(room.turn("s2", LONG), WaitUntil)
    assert room.turn("s3", 0.0) == Go()


def test_kv_that_is_freed_ends_every_back_off_and_keeps_the_order(room: WaitingRoom) -> None:
    for seq in (1, 2):
        room.refused(claims(seq), 0.0)
    room.freed(0.0)
    assert room.turn("s1", 0.0) == WaitUntil(LEAST_BACK_OFF_SECONDS)
    assert room.turn("s1", LEAST_BACK_OFF_SECONDS) == Go()
    assert isinstance(room.turn("s2", LEAST_BACK_OFF_SECONDS), WaitUntil)


def test_who_waits_too_long_gives_up_however_often_it_tried(room: WaitingRoom) -> None:
    for now in (0.0, 30.0, 59.0):
        room.refused(claims(1), now)
    assert room.turn("s1", DEADLINE_SECONDS) == GiveUp(DEADLINE_SECONDS)


def test_who_got_its_kv_in_between_starts_its_time_anew(room: WaitingRoom) -> None:
    room.refused(claims(1), 0.0)
    room.leave("s1")
    room.refused(claims(1), 50.0)
    assert not isinstance(room.turn("s1", 100.0), GiveUp)


def test_nobody_is_told_to_wait_beyond_its_deadline(room: WaitingRoom) -> None:
    room.refused(claims(1), 0.0)
    room.refused(claims(2), 0.0)
    assert room.turn("s2", 1.0) == WaitUntil(DEADLINE_SECONDS)


def test_of_two_choices_of_one_answer_the_first_one_goes_first(room: WaitingRoom) -> None:
    first, second = claims(1), claims(1).of_choice(1)
    for one in (second, first):
        room.refused(one, 0.0)
    assert isinstance(room.turn(second.session_id, 50.0), WaitUntil)
    assert room.turn(first.session_id, 50.0) == Go()
    assert [room.ahead(one.session_id) for one in (first, second)] == [0, 1]


def test_who_waits_is_behind_those_of_its_line_that_were_admitted_before(
    room: WaitingRoom,
) -> None:
    for one in (claims(1), claims(3), claims(2), claims(0, "int8")):
        room.refused(one, 0.0)
    assert [room.ahead(f"s{seq}") for seq in (1, 2, 3, 0, 9)] == [0, 1, 2, 0, 0]


def test_who_waits_for_its_own_answer_has_all_its_time_again(room: WaitingRoom) -> None:
    room.refused(claims(1), 0.0)
    room.be_patient("s1", DEADLINE_SECONDS)
    assert room.turn("s1", DEADLINE_SECONDS) == Go()
    assert isinstance(room.turn("s1", 2 * DEADLINE_SECONDS), GiveUp)
