from meshnet_worker.engine_port import Stepped
from meshnet_worker.step_stats import StepRow, StepStats
from tests.worker.builders import step_result


def stepped(*tokens: int, cpu_seconds: float = 0.5) -> Stepped:
    results = tuple(step_result(session, tokens=count) for session, count in enumerate(tokens))
    return Stepped(results, cpu_seconds=cpu_seconds, wall_seconds=2 * cpu_seconds)


def test_steps_of_one_width_are_added_up() -> None:
    stats = StepStats()
    stats.record(stepped(1, 1))
    stats.record(stepped(1, 1, cpu_seconds=0.25))
    (row,) = stats.rows()
    assert row == StepRow(
        sessions=2, has_prefill=False, steps=2, positions=4, cpu_seconds=0.75, wall_seconds=1.5
    )


def test_steps_with_a_chunk_are_counted_apart() -> None:
    stats = StepStats()
    for step in (stepped(1, 128), stepped(1), stepped(1, 1)):
        stats.record(step)
    rows = [(row.sessions, row.has_prefill, row.positions) for row in stats.rows()]
    assert rows == [(1, False, 1), (2, False, 2), (2, True, 129)]
