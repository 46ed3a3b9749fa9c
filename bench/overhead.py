"""What an engine step costs beside its pass through the model: scheduling, gathering, framing.

One engine's runner in this process, eight Sessions, ten Layers of the real model in the middle of
it, one thread. The pass itself is timed inside the step and taken off.
"""

import time
from collections.abc import Sequence

import torch

from bench.meshes import median
from demo.model import ensure_model
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.runner import BatchRunner
from meshnet_worker.engine.shard import Shard, ShardSource
from meshnet_worker.engine_messages import encode_message
from meshnet_worker.engine_port import OpenSession, RunSegment, SizePool

SESSIONS = 8
STEPS = 60
LAYERS = ShardRange(10, 20)
PROMPT_POSITIONS = 38


class _TimedShard(Shard):
    """A Shard that adds up the seconds of its passes."""

    seconds = 0.0

    def run(
        self,
        shard_range: ShardRange,
        rows: torch.Tensor,
        segments: Sequence[FlatSegment],
        sampled_rows: Sequence[int],
    ) -> torch.Tensor:
        started = time.perf_counter()
        output = super().run(shard_range, rows, segments, sampled_rows)
        self.seconds += time.perf_counter() - started
        return output


def step_overhead_seconds(dtype: str) -> float:
    """Median seconds of a step of eight Sessions that its pass did not take."""
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    shard = _TimedShard(
        ShardSource(str(ensure_model()), getattr(torch, dtype), cpu, compiles=False)
    )
    list(shard.load(LAYERS))
    runner = BatchRunner(
        {0: shard}, cpu, lambda event, payload: _ignore(encode_message(event, payload))
    )
    runner.size_pool(SizePool(0, 4 * SESSIONS))
    for session in range(SESSIONS):
        runner.change(
            OpenSession(session, 0, LAYERS.start, LAYERS.end, 2 * STEPS + PROMPT_POSITIONS)
        )
        _feed(runner, shard, session, 0, PROMPT_POSITIONS)
    while runner.has_work:
        runner.step()
    overheads = []
    for position in range(PROMPT_POSITIONS, PROMPT_POSITIONS + STEPS):
        before, started = shard.seconds, time.perf_counter()
        for session in range(SESSIONS):
            _feed(runner, shard, session, position, 1)
        runner.step()
        overheads.append(time.perf_counter() - started - (shard.seconds - before))
    return median(overheads)


def _feed(runner: BatchRunner, shard: Shard, session: int, start: int, tokens: int) -> None:
    hidden = bytes(tokens * shard.hidden_size * shard.dtype.itemsize)
    runner.add(RunSegment(session, (0, 0), start, tokens), hidden)


def _ignore(_message: bytes) -> None:
    """Take what the socket would take."""
