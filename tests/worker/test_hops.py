import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import (
    SEGMENT_SAMPLE,
    ActivationFrame,
    ActivationsHeader,
    Body,
    ChosenToken,
    CloseBody,
    ErrorBody,
    Segment,
    TokensBody,
)
from meshnet_worker.engine_port import GRAMMAR_FAILED, CloseSession, RunSegment, SessionFailed
from meshnet_worker.requeue import MENDABLE
from tests.common.builders import activations, segment
from tests.worker.builders import (
    LEASE_SECONDS,
    ROW_BYTES,
)
from tests.worker.hop_running import HEAD, MIDDLE, Running


def token_frame(*segments: Segment) -> ActivationFrame:
    """What a Head Worker feeds its own first Hop."""
    return ActivationFrame(ActivationsHeader(segments, 0, "float32"), b"")


def test_segments_go_to_the_engine_with_their_own_rows() -> None:
    running = Running("w1", "s1", "s2")
    header = activations(segment(tokens=2), segment(tokens=1, session_id="s2")).header
    rows = b"a" * 2 * ROW_BYTES + b"b" * ROW_BYTES
    assert running.hops.run(HEAD, ActivationFrame(header, rows)) == 2
    assert [
        (c.session, payload)
        for c, payload in running.recording.commands
        if isinstance(c, RunSegment)
    ] == [
        (1, rows[: 2 * ROW_BYTES]),
        (2, rows[2 * ROW_BYTES :]),
    ]


def test_the_first_hop_starts_from_token_ids() -> None:
    running = Running("w0")
    running.hops.run(HEAD, token_frame(segment(tokens=2, token_ids=(8, 9))))
    (run,) = running.recording.runs
    assert (run.token_ids, run.start, run.tokens, run.draws) == ((8, 9), 0, 2, False)


def test_only_the_tail_draws_and_only_when_asked() -> None:
    draws = {}
    for worker_id, sender in (("w1", HEAD), ("w2", MIDDLE)):
        running = Running(worker_id)
        for start, flags in ((0, SEGMENT_SAMPLE), (1, 0)):
            running.hops.run(sender, activations(segment(start, flags=flags)))
        draws[worker_id] = [run.draws for run in running.recording.runs]
    assert draws == {"w1": [False, False], "w2": [True, False]}


def test_what_another_worker_sends_is_passed_over() -> None:
    running = Running("w2")
    assert running.hops.run(HEAD, activations(segment())) == 0
    assert running.recording.commands == []
    assert running.open_ids == ["s1"]


def test_a_segment_of_no_session_costs_the_others_nothing() -> None:
    running = Running("w1")
    frame = activations(segment(session_id="s9"), segment())
    assert running.hops.run(HEAD, frame) == 1
    assert [run.session for run in running.recording.runs] == [1]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(segment(5), id="a gap"),
        pytest.param(segment(0, tokens=101), id="beyond the reservation"),
    ],
)
def test_a_bad_segment_closes_its_session_and_no_other(bad: Segment) -> None:
    running = Running("w1", "s1", "s2")
    running.hops.run(HEAD, activations(bad, segment(session_id="s2")))
    assert running.open_ids == ["s2"]
    assert [run.session for run in running.recording.runs] == [2]
    (fault,) = running.faults()
    assert (fault.session_id, fault.code, fault.worker_id) == ("s1", "bad_segment", "w1")
    # Its Route may be mended: the Hops after this one keep what they hold.
    assert running.recording.bodies_to("w2") == []


def test_rows_of_another_size_are_a_fault() -> None:
    running = Running("w1")
    running.hops.run(HEAD, activations(segment(), hidden_size=5))
    assert [fault.code for fault in running.faults()] == ["bad_segment"]
    assert running.recording.runs == []


def test_rows_of_another_dtype_are_a_fault_though_their_size_fits() -> None:
    running = Running("w1")
    running.hops.run(HEAD, activations(segment(), hidden_size=8, dtype="bfloat16"))
    assert [fault.code for fault in running.faults()] == ["bad_segment"]
    assert running.recording.runs == []


def test_a_first_hop_without_token_ids_is_a_fault() -> None:
    running = Running("w0")
    running.hops.run(HEAD, ActivationFrame(ActivationsHeader((segment(),), 0, "float32"), b""))
    assert [fault.code for fault in running.faults()] == ["bad_segment"]


def test_a_token_that_nobody_said_how_to_draw_is_a_fault() -> None:
    running = Running("w2")
    running.sessions[0].sampling = None
    running.hops.run(MIDDLE, activations(segment(flags=SEGMENT_SAMPLE)))
    assert [fault.code for fault in running.faults()] == ["bad_segment"]


@pytest.mark.parametrize("hidden_size", [4, 5], ids=["its size", "another size"])
def test_a_stale_segment_is_dropped_unread(hidden_size: int) -> None:
    running = Running("w1")
    running.sessions[0].epoch = (2, 0)
    assert running.hops.run(HEAD, activations(segment(), hidden_size=hidden_size)) == 0
    assert running.open_ids == ["s1"]
    assert running.recording.sent == []


def test_a_duplicate_is_dropped() -> None:
    running = Running("w1")
    for _ in range(2):
        running.hops.run(HEAD, activations(segment()))
    assert len(running.recording.runs) == 1
    assert running.open_ids == ["s1"]


def test_tokens_go_to_the_head() -> None:
    running = Running("w2", "s1", "s2")
    running.stepped(41, 42)
    assert running.recording.sent == [
        (
            "w0",
            TokensBody(tokens=(ChosenToken("s1", (1, 0), 1, 41), ChosenToken("s2", (1, 0), 1, 42))),
        )
    ]


def test_the_oldest_unfinished_step_has_an_age() -> None:
    running = Running("w2")
    ages = [running.hops.oldest_step_seconds()]
    for start in (0, 1):
        running.hops.run(MIDDLE, activations(segment(start, flags=SEGMENT_SAMPLE)))
        running.recording.steady.advance(2)
    ages.append(running.hops.oldest_step_seconds())
    for _ in range(2):
        running.stepped(41)
        ages.append(running.hops.oldest_step_seconds())
    assert ages == [0.0, 4.0, 2.0, 0.0]


def test_an_engine_that_finishes_steps_is_not_silent() -> None:
    running = Running("w2")
    for start in (0, 1):
        running.hops.run(MIDDLE, activations(segment(start, flags=SEGMENT_SAMPLE)))
        running.recording.steady.advance(20)
    assert running.hops.engine_silence_seconds() == 40.0
    running.stepped(41)
    assert running.hops.engine_silence_seconds() == 0.0


def test_a_closed_session_frees_its_kv_here_and_on_every_hop_after() -> None:
    running = Running("w1")
    body = CloseBody(session_id="s1", epoch=(1, 0))
    running.hops.close(body)
    recording = running.recording
    assert recording.kv.free_bytes == recording.kv_bytes
    assert recording.commands == [(CloseSession(1), b"")]
    assert recording.sent == [("w2", body)]
    assert (recording.freed, running.open_ids) == (1, [])
    assert running.hops.oldest_step_seconds() == 0.0


def test_a_closed_session_takes_no_late_segment() -> None:
    running = Running("w1")
    running.hops.close(CloseBody(session_id="s1", epoch=(1, 0)))
    assert running.hops.run(HEAD, activations(segment())) == 0
    assert running.recording.runs == []


def test_a_close_of_an_older_epoch_closes_nothing() -> None:
    running = Running("w1")
    running.sessions[0].epoch = (2, 0)
    running.hops.close(CloseBody(session_id="s1", epoch=(1, 9)))
    assert running.open_ids == ["s1"]


def test_closing_twice_is_no_fault() -> None:
    running = Running("w1")
    for _ in range(2):
        running.hops.close(CloseBody(session_id="s1", epoch=(1, 0)))
    assert running.recording.freed == 1


def test_a_session_that_failed_in_the_engine_is_closed_and_told() -> None:
    running = Running("w1", "s1", "s2")
    running.hops.on_session_failed(SessionFailed(2, "the logits hold a value"))
    assert running.open_ids == ["s1"]
    (fault,) = running.faults()
    assert (fault.session_id, fault.code, fault.message) == (
        "s2",
        "engine_failed",
        "the logits hold a value",
    )


def test_a_session_that_was_asked_for_what_cannot_be_is_told_so() -> None:
    running = Running("w1", "s1", "s2")
    running.hops.on_session_failed(SessionFailed(2, "no such rule", GRAMMAR_FAILED))
    assert [(fault.session_id, fault.code) for fault in running.faults()] == [
        ("s2", GRAMMAR_FAILED)
    ]
    assert GRAMMAR_FAILED not in MENDABLE


def test_a_failure_of_no_session_is_passed_over() -> None:
    running = Running("w1")
    running.hops.on_session_failed(SessionFailed(77, "why"))
    assert running.recording.sent == []


def test_a_lost_engine_ends_every_session() -> None:
    running = Running("w1", "s1", "s2")
    running.hops.on_engine_lost()
    assert running.open_ids == []
    assert [fault.code for fault in running.faults()] == ["engine_lost", "engine_lost"]


def test_a_session_that_nobody_feeds_for_a_lease_is_freed() -> None:
    running = Running("w1", "s1", "s2")
    running.recording.steady.advance(LEASE_SECONDS - 1)
    running.hops.run(HEAD, activations(segment()))
    running.recording.steady.advance(2)
    running.hops.sweep()
    assert running.open_ids == ["s1"]
    assert [(fault.session_id, fault.code) for fault in running.faults()] == [
        ("s2", "lease_expired")
    ]


def test_a_fault_that_a_later_hop_found_is_passed_on_to_the_head() -> None:
    body = ErrorBody(session_id="s1", code="c", message="m", worker_id="w2")
    middle, head = Running("w1"), Running("w0")
    middle.hops.pass_on(body)
    head.hops.pass_on(body)
    assert middle.recording.sent == [("w0", body)]
    assert head.recording.sent == []


def test_an_outlet_hears_results_and_faults_in_place_of_the_route() -> None:
    running = Running("w2")
    heard: list[Body] = []
    running.sessions[0].outlet = heard.append
    running.hops.run(WorkerId("anybody"), activations(segment(flags=SEGMENT_SAMPLE)))
    running.stepped(41)
    running.hops.on_engine_lost()
    assert [type(body) for body in heard] == [TokensBody, ErrorBody]
    assert running.recording.sent == []
