"""Ten times more answers at once than the lent KV memory holds: who finishes, and what is left.

Three Workers with a few KV Blocks in each Layer of a small random model get all requests together;
some clients hang up in the middle. Every answer must be what it is alone, no engine may end, say
that memory ran out or grow by more than the KV that was lent and some slack for buffers, and in
the end every block must be free again in the daemons' count. The engines' own count is not asked
for here: the tests drive both with the same commands.
"""

import json
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import openai
import psutil
from rich.console import Console
from rich.table import Table

from demo.local_mesh import LocalMesh
from demo.processes import Program, Programs
from meshnet_worker.kv_report import KvReport
from tests.mesh.harness import engine_of, start_tight_workers
from tests.mesh.small_models import llama_config, prompt_of, save_random_model, text_of

MODEL = "small"
WORKERS = 3
KV_BYTES = 1 << 20
"""Five KV Blocks in each of three Layers."""
TIMES_WHAT_FITS = 10
PROMPT_TOKENS = (10, 33, 61, 97)
ANSWER_TOKENS = 100
HANG_UP_EVERY = 8
"""One of so many clients leaves after a few tokens."""
ANSWER_SECONDS = 80.0
SETTLED_SECONDS = 10.0
SAMPLE_SECONDS = 0.2
SLACK_BYTES = 32 << 20
"""What an engine may grow by beside KV: activations, torch's buffers, what allocators keep."""
OUT_OF_MEMORY = ("out of memory", "outofmemory", "memoryerror", "can't allocate memory")
"""What the reasons of failures say when memory ran out, in small letters."""


@dataclass(slots=True)
class _Memory:
    """Resident bytes of one engine: before the first request, and the most that was seen."""

    engine: psutil.Process
    before: int = 0
    peak: int = 0

    @property
    def growth(self) -> int:
        return self.peak - self.before

    def look(self) -> None:
        self.peak = max(self.peak, self.engine.memory_info().rss)


@dataclass(slots=True)
class _Soak:
    """What came of it."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    reasons: list[str] = field(default_factory=list)
    """Why answers failed, as their clients were told."""

    @property
    def out_of_memory(self) -> int:
        """Answers that failed because memory ran out."""
        return sum(any(one in reason.lower() for one in OUT_OF_MEMORY) for reason in self.reasons)

    @property
    def offered(self) -> int:
        """Answers that somebody waited for to their end."""
        return self.counts.total() - self.counts["cancelled"]


def main() -> int:
    """Print the table and, as the last line, the figures as JSON; 1 if anything went wrong."""
    with TemporaryDirectory(prefix="meshnet-kv-") as folder, Programs(Path(folder)) as programs:
        mesh = LocalMesh(Path(folder), programs)
        model = save_random_model(llama_config(), Path(folder) / "model")
        mesh.add_preset(model, MODEL, "--quantization", "float32")
        mesh.start_tracker("--headroom-bytes", str(KV_BYTES))
        workers = start_tight_workers(mesh, MODEL, WORKERS, KV_BYTES)
        expected = {tokens: _answer(mesh, tokens) for tokens in PROMPT_TOKENS}
        memories = [_Memory(engine_of(worker)) for worker in workers]
        engines = [memory.engine.pid for memory in memories]
        with _watched(memories):
            soak = _offer(mesh, workers, expected)
        leaked = _leaked(workers)
        lost = sum(engine_of(w).pid != pid for w, pid in zip(workers, engines, strict=True))
        reports = [_report(worker) for worker in workers]
    return _show(soak, reports, memories, leaked, lost)


def _offer(mesh: LocalMesh, workers: Sequence[Program], expected: dict[int, str]) -> _Soak:
    capacity = min(_capacity(_report(worker)) for worker in workers)
    positions = sum(PROMPT_TOKENS) / len(PROMPT_TOKENS) + ANSWER_TOKENS
    staying = int(TIMES_WHAT_FITS * capacity / positions) + 1
    clients = staying + staying // (HANG_UP_EVERY - 1)
    soak, began = _Soak(), time.monotonic()

    def one_client(number: int) -> str:
        tokens = PROMPT_TOKENS[number % len(PROMPT_TOKENS)]
        if number % HANG_UP_EVERY == HANG_UP_EVERY - 1:
            return _hang_up(mesh, tokens, after=number % 5 + 1)
        try:
            return "completed" if _answer(mesh, tokens) == expected[tokens] else "wrong"
        except openai.OpenAIError as error:
            print(f"failed: {error}", file=sys.stderr)
            soak.reasons.append(str(error))
            return "failed"

    with ThreadPoolExecutor(clients) as pool:
        soak.counts.update(pool.map(one_client, range(clients)))
    soak.seconds = time.monotonic() - began
    return soak


def _answer(mesh: LocalMesh, prompt_tokens: int) -> str:
    return "".join(_pieces(mesh, prompt_tokens))


def _hang_up(mesh: LocalMesh, prompt_tokens: int, after: int) -> str:
    for number, _ in enumerate(_pieces(mesh, prompt_tokens)):
        if number == after:
            break
    return "cancelled"


def _pieces(mesh: LocalMesh, prompt_tokens: int) -> Iterator[str]:
    with (
        mesh.client() as client,
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": text_of(prompt_of(prompt_tokens))}],
            max_tokens=ANSWER_TOKENS,
            temperature=0,
            stream=True,
            timeout=ANSWER_SECONDS,
        ) as stream,
    ):
        for chunk in stream:
            for choice in chunk.choices:
                yield choice.delta.content or ""


@contextmanager
def _watched(memories: Sequence[_Memory]) -> Iterator[None]:
    """Look at the engines' memory again and again until the block ends."""
    for memory in memories:
        memory.before = memory.engine.memory_info().rss
    done = threading.Event()

    def look() -> None:
        while not done.wait(SAMPLE_SECONDS):
            for memory in memories:
                memory.look()

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(look)
        try:
            yield
        finally:
            done.set()
            watching.result()


def _leaked(workers: Sequence[Program]) -> int:
    """Blocks that are still held once everybody has left, with some time to settle."""
    deadline = time.monotonic() + SETTLED_SECONDS
    held = _held(workers)
    while held and time.monotonic() < deadline:
        time.sleep(SAMPLE_SECONDS)
        held = _held(workers)
    return held


def _held(workers: Sequence[Program]) -> int:
    return sum(pool.used for worker in workers for pool in _report(worker).pools)


def _report(worker: Program) -> KvReport:
    with urllib.request.urlopen(f"{worker.url}/v1/kv", timeout=10) as answer:
        return msgspec.json.decode(answer.read(), type=KvReport)


def _capacity(report: KvReport) -> int:
    return min(pool.blocks for pool in report.pools) * report.block_positions


def _show(
    soak: _Soak,
    reports: Sequence[KvReport],
    memories: Sequence[_Memory],
    leaked: int,
    lost: int,
) -> int:
    table = Table(
        title=f"{soak.offered} answers at once, {TIMES_WHAT_FITS} times what fits, and "
        f"{soak.counts['cancelled']} that were left, {soak.seconds:.0f} s"
    )
    headings = ("Worker", "blocks a Layer", "gave way here", "engine before", "engine at most")
    for heading in headings:
        table.add_column(heading, justify="right")
    for number, (report, memory) in enumerate(zip(reports, memories, strict=True), 1):
        table.add_row(
            str(number),
            str(min(pool.blocks for pool in report.pools)),
            str(report.preempted),
            f"{memory.before / 2**20:.0f} MiB",
            f"{memory.peak / 2**20:.0f} MiB",
        )
    Console().print(table)
    growth = max(memory.growth for memory in memories)
    overgrown = sum(memory.growth > KV_BYTES + SLACK_BYTES for memory in memories)
    figures = {
        "offered": soak.offered,
        "completed": soak.counts["completed"],
        "cancelled": soak.counts["cancelled"],
        "wrong": soak.counts["wrong"],
        "failed": soak.counts["failed"],
        "preemptions": sum(report.preempted for report in reports),
        "out_of_memory": soak.out_of_memory,
        "engines_lost": lost,
        "engines_overgrown": overgrown,
        "blocks_leaked": leaked,
        "peak_engine_mib": round(max(memory.peak for memory in memories) / 2**20),
        "engine_growth_mib": round(growth / 2**20, 1),
    }
    print(json.dumps(figures))
    return int(bool(figures["wrong"] or figures["failed"] or lost or overgrown or leaked))


if __name__ == "__main__":
    sys.exit(main())
