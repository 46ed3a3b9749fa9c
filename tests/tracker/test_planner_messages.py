from dataclasses import replace

import msgspec
import pytest

from meshnet_tracker.planner_messages import (
    DatabaseAway,
    Opening,
    PassFailed,
    Planned,
    PlanRequest,
    decode_answer,
    decode_opening,
    decode_request,
    encode_line,
)
from meshnet_tracker.planning.snapshot import PlannerPolicy
from tests.tracker.builders import drop, load


def test_an_opening_and_a_request_arrive_as_they_were_sent() -> None:
    opening = Opening("postgresql://user:a%20secret@host/mesh\n")
    assert decode_opening(encode_line(opening)) == opening
    request = PlanRequest(PlannerPolicy(headroom_bytes=7, move_gain=0.5), 1234.5)
    assert decode_request(encode_line(request)) == request


def test_every_answer_arrives_as_it_was_sent() -> None:
    order = replace(load("w1", 0, 3), why="A gap\nof three Layers.", deadline_seconds=3.0)
    planned = Planned((order, drop("w2", 1, 2)), issued_plans=9, seconds=0.25)
    for answer in (planned, DatabaseAway("gone"), PassFailed("ZeroDivisionError: planner")):
        assert decode_answer(encode_line(answer)) == answer
    arrived = decode_answer(encode_line(planned))
    assert isinstance(arrived, Planned)
    assert (arrived.directives[0].why, arrived.directives[0].deadline_seconds) == (
        order.why,
        3.0,
    )


def test_a_message_is_one_line() -> None:
    line = encode_line(PassFailed("one\ntwo"))
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")


def test_nonsense_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_answer(b'{"type":"planned"')
