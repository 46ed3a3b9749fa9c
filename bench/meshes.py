"""What the benchmarks share: a Mesh on loopback, one stream's pace, and step counters."""

import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from demo.local_mesh import LocalMesh, split_budgets
from demo.model import ensure_model
from demo.processes import Program, Programs
from meshnet_worker.step_stats import StepRow

MODEL = "smollm2-135m"
PROMPT = "Write a short poem about the sea."
KV_BYTES = 192 * 1024 * 1024
"""Added to every Budget: thirty-two streams must fit."""


@dataclass(frozen=True, slots=True)
class BenchMesh:
    """A running Mesh of one Variant."""

    mesh: LocalMesh
    workers: Sequence[Program]

    def steps(self) -> list[StepRow]:
        """The step counters of all engines, added up by nobody yet."""
        return [row for worker in self.workers for row in _steps(worker)]


@dataclass(frozen=True, slots=True)
class Pace:
    """One stream: seconds to the first token, and seconds per token after it."""

    first_seconds: float
    token_seconds: float


@contextmanager
def bench_mesh(
    dtype: str, workers: int, threads: int = 1, options: Sequence[str] = ()
) -> Iterator[BenchMesh]:
    """Start a Tracker and Workers of `threads` threads that share the model's Layers equally."""
    # A benchmark that is told to stop still ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with TemporaryDirectory(prefix="meshnet-bench-") as folder, Programs(Path(folder)) as programs:
        mesh = LocalMesh(Path(folder), programs)
        mesh.add_preset(ensure_model(), MODEL, "--quantization", dtype)
        mesh.start_tracker("--headroom-bytes", str(KV_BYTES))
        options = ("--threads", str(threads), *options)
        started = []
        for number, budget in enumerate(_budgets(mesh, workers), 1):
            program = mesh.start_worker(f"worker-{number}", budget, options)
            programs.wait_for(partial(mesh.has_orders, program), 60, f"{program.name} loads")
            started.append(program)
        mesh.wait_until_served(MODEL)
        yield BenchMesh(mesh, started)


def stream(mesh: LocalMesh, new_tokens: int, prompt: str = PROMPT) -> Pace:
    """Stream one answer of exactly `new_tokens` tokens with the official client."""
    started = time.perf_counter()
    first = 0.0
    answer = mesh.client().chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=new_tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for chunk in answer:
        if not first and chunk.choices and chunk.choices[0].delta.content:
            first = time.perf_counter()
    ended = time.perf_counter()
    return Pace(first - started, (ended - first) / (new_tokens - 1))


def median(values: Sequence[float]) -> float:
    """The middle value, which one slow moment of a shared machine does not move."""
    return statistics.median(values)


def _budgets(mesh: LocalMesh, workers: int) -> list[int]:
    # The demo's Budgets leave a share for KV; here the Tracker keeps a fixed size instead.
    preset = mesh.preset(MODEL)
    return [int(budget * 0.8) + KV_BYTES for budget in split_budgets(preset, workers)]


class _Steps(msgspec.Struct):
    steps: list[StepRow]


def _steps(worker: Program) -> list[StepRow]:
    with urllib.request.urlopen(f"{worker.url}/v1/steps", timeout=10) as answer:
        return msgspec.json.decode(answer.read(), type=_Steps).steps
