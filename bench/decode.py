"""Decoding and prefill through three single-threaded Workers against transformers' own `generate`.

All sides run in one go, interleaved, on the same prompts. The figures are medians; a ratio above 1
means that the Mesh is faster. Before anything is measured, the engines decode until their steps
are compiled, or given up.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil
from rich.console import Console
from rich.table import Table

from bench.generate import Generate, generate_server
from bench.load import first_token_seconds, run_streams
from bench.meshes import PROMPT, BenchMesh, bench_mesh, median, stream
from bench.overhead import step_overhead_seconds
from demo.model import ensure_model
from meshnet_common.openai.messages import ChatMessage
from meshnet_worker.text.tokenizer import TextCodec

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
WORKER_OPTIONS = tuple(os.environ.get("BENCH_WORKER_OPTIONS", "").split())
"""Such as `--no-compile`, for what a cold Worker does."""
NEW_TOKENS = 64
HOPS = 3
DTYPES = ("float32", "bfloat16")
WIDTHS = (8, 16)
STATIC_BATCH = 8
PROMPT_TOKENS = 512
LONG_PROMPT_TOKENS = 1024
WARM_UP_SECONDS = float(os.environ.get("BENCH_WARM_UP_SECONDS", "300"))
WARM_UP_TOKENS = 230
WORD = "sea "


@dataclass(slots=True)
class _Figures:
    """One entry per round: seconds per token, seconds to a first token, ratios."""

    one: list[float] = field(default_factory=list)
    generate: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)
    many: dict[int, list[float]] = field(default_factory=lambda: {w: [] for w in WIDTHS})
    batch: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)
    prefill_one_thread: list[float] = field(default_factory=list)
    prefill_two_threads: list[float] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)
    step_overhead: float = 0.0
    unequal: int = 0
    """Of 1, 4 and 16 concurrent answers, those that differ from their serial ones."""

    def ratio(self, ours: list[float], theirs: list[float]) -> float:
        """Median of the rounds' own ratios: a slow moment hits both sides of its round."""
        return round(median([t / o for o, t in zip(ours, theirs, strict=True)]), 3)

    def named(self) -> dict[str, float]:
        return {
            "one_stream_ratio": self.ratio(self.one, self.generate),
            "eight_streams_over_one": self.ratio(self.many[8], self.one),
            "sixteen_streams_over_one": self.ratio(self.many[16], self.one),
            "eight_streams_over_generate_batch": self.ratio(self.many[8], self.batch),
            "prefill_ratio": self.ratio(self.prefill, self.prefill_one_thread),
            "prefill_over_two_threads": self.ratio(self.prefill, self.prefill_two_threads),
            "prefill_overlap": round(median(self.overlap), 3),
            "concurrent_answers_that_differ": self.unequal,
        }


@dataclass(frozen=True, slots=True)
class _Sides:
    """The Mesh, and `generate` with one thread and with two."""

    bench: BenchMesh
    one_thread: Generate
    two_threads: Generate

    @property
    def url(self) -> str:
        return self.bench.mesh.tracker_url


def main(dtypes: Sequence[str]) -> None:
    """Print the tables and, as the last line, the figures as JSON."""
    figures = {dtype: _measure(dtype) for dtype in dtypes}
    Console().print(_table(figures))
    named: dict[str, float] = {}
    for dtype, figure in figures.items():
        for name, value in figure.named().items():
            is_old_name = name == "one_stream_ratio"
            suffix = "" if dtype == "float32" and not is_old_name else f"_{dtype}"
            named[name + suffix] = value
    overheads = [seconds for figure in figures.values() for seconds in figure.overhead]
    steps = [figure.step_overhead for figure in figures.values()]
    named["hop_overhead_ms"] = round(1000 * median(overheads), 3)
    named["step_overhead_ms"] = round(1000 * max(steps), 3)
    print(json.dumps(named))


def _table(figures: dict[str, _Figures]) -> Table:
    table = Table(title=f"{HOPS} single-threaded Workers, {NEW_TOKENS} tokens an answer")
    for heading in ("figure", *figures):
        table.add_column(heading, justify="right")
    rows: dict[str, Callable[[_Figures], str]] = {
        "one stream, tokens/s": lambda f: f"{1 / median(f.one):.1f}",
        "generate, 1 thread, tokens/s": lambda f: f"{1 / median(f.generate):.1f}",
        "eight streams, tokens/s": lambda f: f"{1 / median(f.many[8]):.1f}",
        "sixteen streams, tokens/s": lambda f: f"{1 / median(f.many[16]):.1f}",
        "generate, batch of 8, 2 threads": lambda f: f"{1 / median(f.batch):.1f}",
        "prefill of 512, tokens/s": lambda f: f"{PROMPT_TOKENS / median(f.prefill):.0f}",
        "generate, 1 thread, prefill": lambda f: (
            f"{PROMPT_TOKENS / median(f.prefill_one_thread):.0f}"
        ),
        "generate, 2 threads, prefill": lambda f: (
            f"{PROMPT_TOKENS / median(f.prefill_two_threads):.0f}"
        ),
        "overhead per hop": lambda f: f"{1000 * median(f.overhead):.2f} ms",
        "step overhead, 8 Sessions": lambda f: f"{1000 * f.step_overhead:.2f} ms",
    }
    for name, text in rows.items():
        table.add_row(name, *(text(figure) for figure in figures.values()))
    for name in next(iter(figures.values())).named():
        table.add_row(name, *(f"{figure.named()[name]:.3f}" for figure in figures.values()))
    return table


def _measure(dtype: str) -> _Figures:
    figures = _Figures(step_overhead=step_overhead_seconds(dtype))
    codec = TextCodec.load(ensure_model())
    with (
        bench_mesh(dtype, HOPS, options=WORKER_OPTIONS) as bench,
        generate_server(dtype, 1) as one_thread,
        generate_server(dtype, 2) as two_threads,
    ):
        sides = _Sides(bench, one_thread, two_threads)
        if "--no-compile" not in WORKER_OPTIONS:
            _warm_up(sides)
        if ROUNDS > 1:
            figures.unequal = _unequal_answers(sides)
        for _ in range(ROUNDS + 1):
            _measure_round(sides, codec, figures)
    _forget_first(figures)
    return figures


def _measure_round(sides: _Sides, codec: TextCodec, figures: _Figures) -> None:
    prompt_ids = _ids(codec, PROMPT)
    before = _step_seconds(sides.bench, has_prefill=False)
    pace = stream(sides.bench.mesh, NEW_TOKENS).token_seconds
    engine = _step_seconds(sides.bench, has_prefill=False) - before
    figures.one.append(pace)
    figures.overhead.append((pace - engine / (NEW_TOKENS - 1)) / HOPS)
    figures.generate.append(sides.one_thread.token_seconds(prompt_ids, NEW_TOKENS))
    for width in WIDTHS:
        streams = run_streams(sides.url, [PROMPT] * width, NEW_TOKENS)
        figures.many[width].append(1 / streams.tokens_per_second)
    batch = sides.two_threads.token_seconds(prompt_ids, NEW_TOKENS, STATIC_BATCH)
    figures.batch.append(batch)
    prompt = _prompt(codec, PROMPT_TOKENS)
    figures.prefill.append(first_token_seconds(sides.url, prompt))
    figures.prefill_one_thread.append(sides.one_thread.first_seconds(_ids(codec, prompt)))
    figures.prefill_two_threads.append(sides.two_threads.first_seconds(_ids(codec, prompt)))
    before = _step_seconds(sides.bench, has_prefill=True)
    first = first_token_seconds(sides.url, _prompt(codec, LONG_PROMPT_TOKENS))
    figures.overlap.append((_step_seconds(sides.bench, has_prefill=True) - before) / first)


def _unequal_answers(sides: _Sides) -> int:
    prompts = [f"{PROMPT} {WORD * (9 * number)}" for number in range(WIDTHS[-1])]
    serial = [run_streams(sides.url, [prompt], NEW_TOKENS).texts[0] for prompt in prompts]
    unequal = 0
    for width in (1, 4, WIDTHS[-1]):
        together = run_streams(sides.url, prompts[:width], NEW_TOKENS).texts
        unequal += sum(ours != alone for ours, alone in zip(together, serial, strict=False))
    return unequal


def _warm_up(sides: _Sides) -> None:
    """Decode at every width until its steps are compiled, or nothing changes any more."""
    deadline = time.monotonic() + WARM_UP_SECONDS
    for width in (1, *WIDTHS):
        share, is_settled = 0.0, False
        while share < 0.9 and not is_settled and time.monotonic() < deadline:
            before, noted = _compiled(sides.bench), len(_noted(sides.bench))
            run_streams(sides.url, [PROMPT] * width, WARM_UP_TOKENS)
            has_built = _wait_for_compilers(sides.bench, deadline)
            is_settled = not has_built and len(_noted(sides.bench)) == noted
            steps, compiled = (
                now - then for now, then in zip(_compiled(sides.bench), before, strict=True)
            )
            share = compiled / steps
        print(f"{width} streams: {share:.0%} of the steps compiled", file=sys.stderr)
    print("\n".join(_noted(sides.bench)), file=sys.stderr)


def _wait_for_compilers(bench: BenchMesh, deadline: float) -> bool:
    """Returns whether there were any."""
    engines = [e for w in bench.workers for e in psutil.Process(w.process.pid).children()]
    has_built = False
    while any(engine.children() for engine in engines) and time.monotonic() < deadline:
        has_built = True
        time.sleep(0.5)
    return has_built


def _noted(bench: BenchMesh) -> list[str]:
    """What the engines said about steps that were compiled, or were not."""
    logs = [(w.name, line) for w in bench.workers for line in w.log.read_text().splitlines()]
    return [f"{name}: {line}" for name, line in logs if " decode steps " in line]


def _compiled(bench: BenchMesh) -> tuple[int, int]:
    rows = [row for row in bench.steps() if not row.has_prefill]
    return sum(row.steps for row in rows), sum(row.compiled_steps for row in rows)


def _step_seconds(bench: BenchMesh, *, has_prefill: bool) -> float:
    return sum(row.wall_seconds for row in bench.steps() if row.has_prefill == has_prefill)


def _prompt(codec: TextCodec, tokens: int) -> str:
    """A prompt that is this many tokens long with its chat template, or one less."""
    words = tokens
    while len(_ids(codec, WORD * words)) > tokens:
        words -= 1
    return WORD * words


def _ids(codec: TextCodec, prompt: str) -> list[int]:
    return codec.prompt_ids([ChatMessage(role="user", content=prompt)])


def _forget_first(figures: _Figures) -> None:
    # The first round also warms whatever the streams above did not.
    lists = (figures.one, figures.generate, figures.overhead, *figures.many.values())
    prefills = (figures.prefill, figures.prefill_one_thread, figures.prefill_two_threads)
    for rounds in (*lists, *prefills, figures.batch, figures.overlap):
        del rounds[0]


if __name__ == "__main__":
    main(sys.argv[1:] or DTYPES)
