"""How long engine steps take, by how many Sessions share one; pure counters since the start.

This is how an Operator, or a benchmark, tells compute from everything around it.
"""

import msgspec

from meshnet_worker.engine_port import Stepped


class StepRow(msgspec.Struct, kw_only=True):
    """All steps of one width so far; times are the engine process's own, in seconds.

    A step with any Prefill Chunk in it is counted apart from pure Decode Steps.
    """

    sessions: int
    has_prefill: bool
    steps: int = 0
    positions: int = 0
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    compiled_steps: int = 0


class StepStats:
    """Counts the steps of this Worker's engine."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, bool], StepRow] = {}

    def record(self, stepped: Stepped) -> None:
        width = len(stepped.results)
        has_prefill = any(result.tokens > 1 for result in stepped.results)
        empty = StepRow(sessions=width, has_prefill=has_prefill)
        row = self._rows.setdefault((width, has_prefill), empty)
        row.steps += 1
        row.positions += sum(result.tokens for result in stepped.results)
        row.cpu_seconds += stepped.cpu_seconds
        row.wall_seconds += stepped.wall_seconds
        row.compiled_steps += stepped.was_compiled

    def rows(self) -> list[StepRow]:
        return sorted(self._rows.values(), key=lambda row: (row.sessions, row.has_prefill))
