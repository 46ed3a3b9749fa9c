"""One stream over three single-threaded Workers against transformers' own `generate`.

Both sides run in one go, interleaved, single-threaded and on the same prompt. The figures are
medians; a ratio above 1 means that the Mesh is faster.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from bench.meshes import PROMPT, BenchMesh, bench_mesh, median, stream
from demo.model import ensure_model
from meshnet_common.openai.messages import ChatMessage
from meshnet_worker.text.tokenizer import TextCodec

ROUNDS = 5
NEW_TOKENS = 64
HOPS = 3
DTYPES = ("float32", "bfloat16")


@dataclass(slots=True)
class _Figures:
    """Seconds per token of each round, and own overhead per token, of one dtype."""

    mesh: list[float] = field(default_factory=list)
    generate: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Median of the rounds' own ratios: a slow moment hits both sides of its round."""
        return median([g / m for m, g in zip(self.mesh, self.generate, strict=True)])


def main() -> None:
    """Print the table and, as the last line, the figures as JSON."""
    figures = {dtype: _measure(dtype) for dtype in DTYPES}
    table = Table(title=f"one stream, {HOPS} single-threaded Workers, {NEW_TOKENS} tokens")
    for heading in ("dtype", "mesh tokens/s", "generate tokens/s", "ratio", "overhead per hop"):
        table.add_column(heading, justify="right")
    for dtype, figure in figures.items():
        table.add_row(
            dtype,
            f"{1 / median(figure.mesh):.1f}",
            f"{1 / median(figure.generate):.1f}",
            f"{figure.ratio:.3f}",
            f"{1000 * median(figure.overhead):.2f} ms",
        )
    Console().print(table)
    overheads = [seconds for figure in figures.values() for seconds in figure.overhead]
    ratios = {f"one_stream_ratio_{dtype}": round(f.ratio, 3) for dtype, f in figures.items()}
    print(json.dumps({**ratios, "hop_overhead_ms": round(1000 * median(overheads), 3)}))


def _measure(dtype: str) -> _Figures:
    prompt_ids = TextCodec.load(ensure_model()).prompt_ids(
        [ChatMessage(role="user", content=PROMPT)]
    )
    figures = _Figures()
    with bench_mesh(dtype, HOPS) as bench, _generate_server(dtype) as generate:
        stream(bench.mesh, NEW_TOKENS)
        generate.token_seconds(prompt_ids)
        for _ in range(ROUNDS):
            before = _engine_seconds(bench)
            token_seconds = stream(bench.mesh, NEW_TOKENS).token_seconds
            engine_seconds = (_engine_seconds(bench) - before) / (NEW_TOKENS - 1)
            figures.mesh.append(token_seconds)
            figures.overhead.append((token_seconds - engine_seconds) / HOPS)
            figures.generate.append(generate.token_seconds(prompt_ids))
    return figures


def _engine_seconds(bench: BenchMesh) -> float:
    return sum(row.wall_seconds for row in bench.steps() if not row.has_prefill)


class _Generate:
    """The process that runs transformers' `generate`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def token_seconds(self, prompt_ids: list[int]) -> float:
        """Seconds per token after the first."""
        assert self._process.stdin is not None
        request = {"prompt_ids": prompt_ids, "new_tokens": NEW_TOKENS}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self.line())
        seconds: float = answer["total_seconds"] - answer["first_seconds"]
        return seconds / (NEW_TOKENS - 1)

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def _generate_server(dtype: str) -> Iterator[_Generate]:
    arguments = [sys.executable, "-m", "bench.generate_server", str(ensure_model()), dtype, "1"]
    with subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            server = _Generate(process)
            server.line()
            yield server
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
