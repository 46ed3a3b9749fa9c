"""Rolling a Session back to a position: on the Hop, and in what its engine is told."""

from meshnet_common.protocol.bodies import SEGMENT_SAMPLE, Epoch, Segment
from meshnet_worker.engine_port import RunSegment, Stepped, StepResult, TruncateSession
from tests.common.builders import activations, segment
from tests.worker.hop_running import MIDDLE, Running


def run(running: Running, *segments: Segment) -> None:
    for one in segments:
        running.hops.run(MIDDLE, activations(one))


def finish(running: Running, start: int, tokens: int, epoch: Epoch) -> None:
    result = StepResult(1, epoch, start, tokens, SEGMENT_SAMPLE, 0, 40)
    running.hops.on_stepped(Stepped((result,), 0.0, 0.0), b"")


def test_a_higher_epoch_below_what_is_held_truncates_here_and_in_the_engine() -> None:
    running = Running("w2")
    run(running, segment(0, 6), segment(4, 1, epoch=(1, 1)))
    commands = [command for command, _ in running.recording.commands]
    assert [type(command) for command in commands] == [RunSegment, TruncateSession, RunSegment]
    assert commands[1] == TruncateSession(1, 4)
    assert running.sessions[0].held == 5
    assert running.sessions[0].max_positions == 100


def test_a_higher_epoch_that_goes_on_truncates_nothing() -> None:
    running = Running("w2")
    run(running, segment(0, 6), segment(6, 1, epoch=(1, 1)))
    assert [type(command) for command, _ in running.recording.commands] == [RunSegment] * 2


def test_segments_that_the_engine_was_told_to_forget_are_not_waited_for() -> None:
    running = Running("w2")
    run(running, segment(0, 6), segment(6, 1))
    running.recording.steady.advance(20)
    run(running, segment(6, 1, epoch=(1, 1)))
    assert running.hops.oldest_step_seconds() == 0.0
    # One had run already and comes back late; the other never does.
    finish(running, 0, 6, (1, 0))
    running.recording.steady.advance(5)
    assert running.hops.oldest_step_seconds() == 5.0
    finish(running, 6, 1, (1, 1))
    assert running.hops.oldest_step_seconds() == 0.0


def test_what_comes_back_of_an_epoch_before_goes_nowhere() -> None:
    running = Running("w2")
    run(running, segment(0, 6, flags=SEGMENT_SAMPLE), segment(4, 1, epoch=(1, 1)))
    finish(running, 0, 6, (1, 0))
    assert running.recording.sent == []
