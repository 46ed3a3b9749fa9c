"""A Hop whose Peers are lost, or that refills another: what it keeps, and what the Heads hear."""

import msgspec
import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import (
    SEGMENT_FILL,
    SEGMENT_PREFILL,
    ActivationFrame,
    Epoch,
    ProgressBody,
    ReplayBody,
)
from meshnet_worker.engine_port import Stepped
from meshnet_worker.sessions import ORPHAN_SECONDS
from tests.common.builders import activations, hop, segment, ticket
from tests.worker.builders import ROW_BYTES, hop_session, step_result
from tests.worker.hop_running import HEAD, TAIL, Running


def test_heads_hear_of_a_lost_peer_and_what_is_held_is_kept() -> None:
    running = Running("w1")
    elsewhere = ticket(hop("w7", 0, 1), hop("w1", 1, 4), session_id="s2")
    running.recording.sessions.add(hop_session(elsewhere, place=1, engine_session=50))
    running.hops.on_peer_lost(TAIL, "refused")
    running.hops.on_peer_stalled(TAIL, "its engine is overdue")
    assert running.open_ids == ["s1", "s2"]
    assert [(fault.session_id, fault.code, fault.worker_id) for fault in running.faults()] == [
        ("s1", "peer_lost", "w2"),
        ("s1", "peer_stalled", "w2"),
    ]
    assert len(running.recording.sent) == 2


def test_a_session_whose_head_is_lost_waits_for_another_but_not_for_its_whole_lease() -> None:
    running = Running("w1")
    running.hops.on_peer_lost(HEAD, "refused")
    assert (running.open_ids, running.recording.sent) == (["s1"], [])
    running.recording.steady.advance(ORPHAN_SECONDS + 1)
    running.hops.sweep()
    assert running.open_ids == []


def test_the_first_hop_also_misses_the_tail() -> None:
    running = Running("w0")
    running.hops.on_peer_lost(TAIL, "refused")
    assert [fault.worker_id for fault in running.faults()] == ["w2"]


def test_who_leaves_tells_the_heads_and_runs_on() -> None:
    running = Running("w1", "s1", "s2")
    running.hops.tell_that_it_drains()
    assert [fault.code for fault in running.faults()] == ["draining", "draining"]
    assert running.open_ids == ["s1", "s2"]


def test_heads_hear_of_segments_that_wait_unless_the_engine_is_overdue() -> None:
    running = Running("w1", "s1", "s2")
    running.hops.run(HEAD, activations(segment(), segment(session_id="s2")))
    running.hops.tell_who_waits()
    assert running.recording.sent == []
    running.recording.steady.advance(1.5)
    running.recording.slow_batch_seconds = 2.0
    running.hops.tell_who_waits()
    waiting = running.recording.bodies_to("w0")
    assert [(b.session_id, b.waits) for b in waiting if isinstance(b, ProgressBody)] == [
        ("s1", True),
        ("s2", True),
    ]
    running.recording.steady.advance(1.5)
    running.hops.tell_who_waits()
    assert len(running.recording.sent) == 2
    assert running.hops.overdue_seconds() == 1.0


def kept_running() -> Running:
    """The Hop w1, which has run positions 0 to 3 and sent them on."""
    running = Running("w1")
    running.hops.run(HEAD, activations(segment(tokens=4)))
    result = step_result(1, 0, 4, hidden_bytes=4 * ROW_BYTES)
    payload = b"".join(bytes([row]) * ROW_BYTES for row in range(4))
    running.hops.on_stepped(Stepped((result,), 0.0, 0.0), payload)
    running.recording.sent.clear()
    return running


def replay(start: int, tokens: int, epoch: Epoch = (1, 1)) -> ReplayBody:
    return ReplayBody(session_id="s1", epoch=epoch, start=start, tokens=tokens, last_hop=2)


def test_what_was_sent_is_sent_again_to_refill_the_next_hop() -> None:
    running = kept_running()
    running.hops.replay(HEAD, replay(1, 2))
    ((target, frame),) = running.recording.sent
    assert target == "w2"
    assert isinstance(frame, ActivationFrame)
    assert frame.hidden == bytes([1]) * ROW_BYTES + bytes([2]) * ROW_BYTES
    (sent,) = frame.header.segments
    assert (sent.epoch, sent.start, sent.tokens, sent.last_hop) == ((1, 1), 1, 2, 2)
    assert sent.flags == SEGMENT_FILL | SEGMENT_PREFILL


def test_a_replay_of_what_is_not_kept_is_a_fault_that_closes_nothing() -> None:
    running = kept_running()
    running.hops.replay(HEAD, replay(1, 9))
    assert [fault.code for fault in running.faults()] == ["not_kept"]
    assert running.open_ids == ["s1"]


@pytest.mark.parametrize(
    ("sender", "body"),
    [
        pytest.param(TAIL, replay(1, 2), id="not from the head"),
        pytest.param(HEAD, replay(1, 2, (0, 9)), id="of an earlier epoch"),
        pytest.param(HEAD, msgspec.structs.replace(replay(1, 2), session_id="s9"), id="of nobody"),
    ],
)
def test_a_replay_that_nobody_may_ask_for_sends_nothing(sender: WorkerId, body: ReplayBody) -> None:
    running = kept_running()
    running.hops.replay(sender, body)
    assert running.recording.sent == []


def test_a_session_that_is_let_go_is_freed_here_only() -> None:
    running = Running("w0")
    running.hops.let_go("s1")
    running.hops.let_go("s9")
    assert (running.open_ids, running.recording.sent) == ([], [])
    assert running.recording.freed == 1


def test_what_refilled_a_hop_is_kept_to_refill_the_one_after_it() -> None:
    running = Running("w1")
    running.hops.run(HEAD, activations(segment(tokens=4, flags=SEGMENT_FILL)))
    result = step_result(1, 0, 4, flags=SEGMENT_FILL, hidden_bytes=4 * ROW_BYTES)
    running.hops.on_stepped(Stepped((result,), 0.0, 0.0), bytes(4 * ROW_BYTES))
    assert running.recording.kept.until(1) == 4


def test_a_tracker_that_sets_its_clock_ages_no_step_and_ends_no_lease() -> None:
    running = Running("w1")
    running.hops.run(HEAD, activations(segment()))
    running.recording.clock.advance(100_000)
    running.hops.sweep()
    assert running.open_ids == ["s1"]
    assert (running.hops.oldest_step_seconds(), running.hops.overdue_seconds()) == (0.0, 0.0)
