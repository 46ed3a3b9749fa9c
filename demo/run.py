"""`make demo`: one Tracker and three Workers on this machine answer a chat with a real model.

No Worker's Budget holds the whole model. On a terminal the Mesh stays up until Ctrl-C, so that
other programs can use it; without one, or with DEMO_ONCE=1, the demo ends after one answer. Either
way nothing that it started is left running.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CalledProcessError
from types import FrameType

from openai import OpenAIError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo.local_mesh import (
    COVERAGE_SECONDS,
    LocalMesh,
    budget_for,
    covered_layers,
    gaps,
    split_budgets,
)
from demo.model import MODEL_NAME, ModelPackageMissingError, ensure_model
from demo.processes import DeadlineError, Program, ProgramFailedError, Programs
from meshnet_common.shard_range import ShardRange

WORKERS = 3
QUESTION = "What is the capital of France, and what is it known for?"
ANSWER_TOKENS = 64
INTERRUPTED = 128 + signal.SIGINT

console = Console(highlight=False)


@dataclass(slots=True)
class Answer:
    """What a stream told: its token count, and when its first and last pieces came."""

    tokens: int = 0
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decode speed alone: the time to the first token is prefill and stands apart."""
        seconds = self.last_at - self.first_at
        return (self.tokens - 1) / seconds if seconds > 0 else 0.0


def main() -> int:
    """Run the demo; returns the exit status."""
    signal.signal(signal.SIGTERM, _exit_on_signal)
    signal.signal(signal.SIGHUP, _exit_on_signal)
    stays_up = sys.stdout.isatty() and os.environ.get("DEMO_ONCE") != "1"
    try:
        _demo(ensure_model(), stays_up=stays_up)
    except KeyboardInterrupt:
        console.print("\nstopped")
        return INTERRUPTED
    except CalledProcessError as error:
        return _failed(f"{' '.join(error.cmd)}:\n{error.stderr.decode(errors='replace')}")
    except ModelPackageMissingError as error:
        return _failed(str(error.__doc__))
    except (DeadlineError, ProgramFailedError, OpenAIError, OSError) as error:
        return _failed(str(error))
    return 0


def _demo(model_folder: Path, *, stays_up: bool) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="meshnet-demo-") as folder,
        Programs(Path(folder)) as programs,
        _deaf_while_ending(),
    ):
        mesh = LocalMesh(Path(folder), programs)
        try:
            _start(mesh, model_folder)
            _ask(mesh)
            _show_coverage(mesh)
        except OpenAIError:
            console.print(programs.log_tails(), markup=False)
            raise
        if stays_up:
            _stay(mesh)


def _start(mesh: LocalMesh, model_folder: Path) -> None:
    console.print(f"[bold]model[/]    {model_folder}")
    mesh.add_preset(model_folder, MODEL_NAME)
    mesh.start_tracker()
    console.print(f"[bold]tracker[/]  {mesh.tracker_url}")
    preset = mesh.preset(MODEL_NAME)
    budgets = split_budgets(preset, WORKERS)
    lent = ", ".join(f"{budget / 2**20:.0f}" for budget in budgets)
    whole = budget_for(preset, ShardRange(0, preset.layer_count)) / 2**20
    console.print(
        f"[bold]workers[/]  {WORKERS}, which lend {lent} MiB; the whole model needs {whole:.0f}"
    )
    columns = (
        TextColumn("[bold]coverage[/]"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("layers"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("coverage", total=preset.layer_count)

        def covers() -> bool:
            rows = mesh.coverage(MODEL_NAME)
            progress.update(bar, completed=covered_layers(rows))
            return not gaps(rows)

        for number, budget in enumerate(budgets, 1):
            worker = mesh.start_worker(f"worker-{number}", budget)
            _wait_for_orders(mesh, worker, covers)
        mesh.programs.wait_for(covers, COVERAGE_SECONDS, "every layer is covered")


def _wait_for_orders(mesh: LocalMesh, worker: Program, show: Callable[[], bool]) -> None:
    """Start the next Worker only then, so that each Budget meets the Layers that it is cut for."""

    def has_orders() -> bool:
        show()
        return mesh.has_orders(worker)

    what = f"{worker.name} is told what to load"
    mesh.programs.wait_for(has_orders, COVERAGE_SECONDS, what)


def _ask(mesh: LocalMesh) -> None:
    console.print(f"\n[bold]you[/]      {QUESTION}\n[bold]mesh[/]     ", end="")
    asked_at = time.monotonic()
    answer = Answer()
    for text in _stream(mesh, answer):
        console.print(text, end="", markup=False, soft_wrap=True)
    console.print(
        f"\n\n{answer.tokens} tokens, {answer.tokens_per_second:.1f} tokens/s, "
        f"the first after {answer.first_at - asked_at:.2f} s\n"
    )


def _stream(mesh: LocalMesh, answer: Answer) -> Iterator[str]:
    with mesh.client() as client:
        stream = client.chat.completions.create(
            model=MODEL_NAME,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=ANSWER_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            if chunk.usage is not None:
                answer.tokens = chunk.usage.completion_tokens
            for choice in chunk.choices:
                if choice.delta.content:
                    answer.last_at = time.monotonic()
                    answer.first_at = answer.first_at or answer.last_at
                    yield choice.delta.content


def _show_coverage(mesh: LocalMesh) -> None:
    layers = mesh.preset(MODEL_NAME).layer_count
    for hop in mesh.route(MODEL_NAME).hops:
        cells = "".join("█" if layer in hop.shard_range.layers else "·" for layer in range(layers))
        console.print(f"{cells}  layers {hop.shard_range} on {hop.url}", markup=False)


def _stay(mesh: LocalMesh) -> None:
    console.print(
        f"\nThe mesh stays up at {mesh.tracker_url} until Ctrl-C. From another terminal:\n"
    )
    snippet = (
        f"{sys.executable} - <<'END'\n"
        "from openai import OpenAI\n"
        f'client = OpenAI(base_url="{mesh.tracker_url}/v1", api_key="not-needed")\n'
        "stream = client.chat.completions.create(\n"
        f'    model="{MODEL_NAME}", stream=True, max_tokens=100, temperature=0,\n'
        '    messages=[{"role": "user", "content": "Who wrote Hamlet?"}],\n'
        ")\n"
        "for chunk in stream:\n"
        '    print(chunk.choices[0].delta.content or "", end="", flush=True)\n'
        "END"
    )
    console.print(snippet, markup=False, soft_wrap=True)
    try:
        mesh.programs.wait_for(lambda: False, float("inf"), "Ctrl-C")
    except KeyboardInterrupt:
        console.print("\nstopping")


@contextmanager
def _deaf_while_ending() -> Iterator[None]:
    """A second Ctrl-C must not interrupt the ending of what we started."""
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _failed(reason: str) -> int:
    console.print(f"\nThe demo failed: {reason}", markup=False, soft_wrap=True, style="red")
    return 1


if __name__ == "__main__":
    sys.exit(main())
