from collections.abc import Sequence

import msgspec
import pytest

from meshnet_common.protocol.bodies import (
    SEGMENT_FILL,
    SEGMENT_PREFILL,
    ActivationFrame,
    ChosenToken,
    ProgressBody,
    TokensBody,
)
from meshnet_common.protocol.sampling import TokenLogprobs
from meshnet_worker.engine_port import StepResult
from meshnet_worker.kept import KeptActivations
from meshnet_worker.outgoing import Outgoing, outgoing
from meshnet_worker.sessions import HopSession, SessionTable
from tests.common.builders import hop, hops, ticket
from tests.worker.builders import LEASE_SECONDS, ROW_BYTES, hop_session, step_result

FIRST, LAST = 0, 1


def table(*sessions: HopSession) -> SessionTable:
    made = SessionTable(LEASE_SECONDS)
    for session in sessions:
        made.add(session)
    return made


def opened(number: int, place: int = FIRST) -> HopSession:
    """Session `s<number>` on one Hop of a Route over w0 and w1."""
    return hop_session(ticket(*hops(2, 2), session_id=f"s{number}"), place, number)


def sent(
    sessions: SessionTable, results: Sequence[StepResult], payload: bytes = b""
) -> list[Outgoing]:
    return list(outgoing(sessions, KeptActivations(1 << 20), results, payload))


def rows(*values: int) -> bytes:
    """Hidden states whose rows repeat one byte each."""
    return b"".join(bytes([value]) * ROW_BYTES for value in values)


def computed(session: int, tokens: int = 1, **facts: int) -> StepResult:
    return step_result(session, tokens=tokens, hidden_bytes=tokens * ROW_BYTES, **facts)


def test_what_was_computed_together_travels_together() -> None:
    sessions = table(opened(1), opened(2))
    (only,) = sent(sessions, [computed(1, start=7), computed(2, start=9)], rows(1, 2))
    assert only.target.worker_id == "w1"
    assert isinstance(only.body, ActivationFrame)
    assert [(run.session_id, run.start) for run in only.body.header.segments] == [
        ("s1", 7),
        ("s2", 9),
    ]
    assert only.body.hidden == rows(1, 2)
    assert only.body.header.hidden_size * 4 == ROW_BYTES


def test_decode_steps_and_chunks_leave_in_two_frames_with_their_own_rows() -> None:
    sessions = table(*(opened(number) for number in range(1, 5)))
    results = [
        computed(1),
        computed(2, tokens=2, flags=SEGMENT_PREFILL),
        computed(3),
        computed(4, flags=SEGMENT_PREFILL),
    ]
    frames = [out.body for out in sent(sessions, results, rows(1, 2, 2, 3, 4))]
    assert [frame.hidden for frame in frames if isinstance(frame, ActivationFrame)] == [
        rows(1, 3),
        rows(2, 2, 4),
    ]
    assert len(frames) == 2


def test_each_next_hop_gets_its_own_frames() -> None:
    other = ticket(hop("w0", 0, 2), hop("w9", 2, 4), session_id="s2")
    sessions = table(opened(1), hop_session(other, FIRST, 2))
    targets = [
        out.target.worker_id for out in sent(sessions, [computed(1), computed(2)], rows(1, 2))
    ]
    assert sorted(targets) == ["w1", "w9"]


def test_tokens_go_straight_to_the_head_in_one_frame() -> None:
    sessions = table(opened(1, LAST), opened(2, LAST))
    logprobs = TokenLogprobs(-0.5, ((71, -0.5),))
    results = [
        step_result(1, start=4, tokens=3, token_id=70),
        msgspec.structs.replace(step_result(2, token_id=71), logprobs=logprobs),
    ]
    (only,) = sent(sessions, results)
    assert only.target.worker_id == "w0"
    assert only.body == TokensBody(
        tokens=(ChosenToken("s1", (1, 0), 7, 70), ChosenToken("s2", (1, 0), 1, 71, logprobs))
    )


def test_a_chunk_that_wants_no_token_tells_the_head_of_its_progress() -> None:
    (only,) = sent(table(opened(1, LAST)), [step_result(1, start=0, tokens=128)])
    assert only.target.worker_id == "w0"
    assert only.body == ProgressBody(session_id="s1", epoch=(1, 0), position=128)


@pytest.mark.parametrize("last_hop", [None, FIRST])
def test_a_fill_that_ends_here_goes_nowhere_and_the_head_is_told(last_hop: int | None) -> None:
    result = msgspec.structs.replace(computed(1, flags=SEGMENT_FILL), last_hop=last_hop)
    (only,) = sent(table(opened(1)), [result], rows(1))
    assert only.target.worker_id == "w0"
    assert isinstance(only.body, ProgressBody)


def test_a_fill_of_a_later_hop_goes_on_with_the_place_of_its_end() -> None:
    result = msgspec.structs.replace(computed(1, flags=SEGMENT_FILL), last_hop=LAST)
    (only,) = sent(table(opened(1)), [result], rows(1))
    assert isinstance(only.body, ActivationFrame)
    assert only.body.header.segments[0].last_hop == LAST


def test_what_goes_to_another_hop_is_kept() -> None:
    kept = KeptActivations(1 << 20)
    results = [computed(1, tokens=2), computed(2)]
    list(outgoing(table(opened(1)), kept, results, rows(1, 2, 3)))
    assert (kept.until(1), kept.until(2)) == (2, 0)
    assert kept.rows(1, 1, 1) == rows(2)


def test_the_caller_of_a_forwarded_fill_is_answered() -> None:
    session = opened(1)
    session.outlet = lambda _body: None
    (only,) = sent(table(session), [computed(1, flags=SEGMENT_FILL)], rows(1))
    assert only.outlet is session.outlet
    assert isinstance(only.body, ProgressBody)


def test_flags_go_on_with_their_segment() -> None:
    (only,) = sent(table(opened(1)), [computed(1, flags=2)], rows(1))
    assert isinstance(only.body, ActivationFrame)
    assert only.body.header.segments[0].flags == 2


def test_a_closed_session_is_left_out_and_the_rest_keep_their_rows() -> None:
    (only,) = sent(table(opened(2)), [computed(1), computed(2)], rows(1, 2))
    assert isinstance(only.body, ActivationFrame)
    assert only.body.hidden == rows(2)


def test_a_result_of_an_older_epoch_is_left_out() -> None:
    session = opened(1)
    session.epoch = (2, 0)
    assert sent(table(session), [computed(1)], rows(1)) == []


def test_a_session_with_an_outlet_shares_no_frame_with_others() -> None:
    private = opened(2)
    private.outlet = lambda _body: None
    results = sent(table(opened(1), private), [computed(1), computed(2)], rows(1, 2))
    frames = [(out.outlet, out.body) for out in results]
    assert [outlet for outlet, _ in frames] == [None, private.outlet]
    assert [body.hidden for _, body in frames if isinstance(body, ActivationFrame)] == [
        rows(1),
        rows(2),
    ]


def test_hidden_states_of_a_route_that_ends_early_answer_its_head() -> None:
    session = hop_session(ticket(hop("w0", 0, 2), layer_count=4))
    (only,) = sent(table(session), [computed(1)], rows(1))
    assert only.target.worker_id == "w0"
    assert isinstance(only.body, ActivationFrame)
