"""Three Workers against one on the same host, each with its fair share of the cores.

`--threads auto` gives one Worker all cores and three a third each, at least one. Here the same
numbers are set outright, so that both meshes can run side by side and be measured interleaved.
"""

import json
import os

from rich.console import Console
from rich.table import Table

from bench.meshes import bench_mesh, median, stream

ROUNDS = 5
NEW_TOKENS = 64
DTYPES = ("float32", "bfloat16")


def main() -> None:
    """Print the table and, as the last line, the figures as JSON."""
    cores = len(os.sched_getaffinity(0))
    table = Table(title=f"one stream on {cores} cores, tokens/s")
    for heading in ("dtype", "one Worker", "three Workers", "ratio"):
        table.add_column(heading, justify="right")
    ratios = {}
    for dtype in DTYPES:
        one, three = _measure(dtype, cores)
        ratio = median([o / t for o, t in zip(one, three, strict=True)])
        table.add_row(dtype, f"{1 / median(one):.1f}", f"{1 / median(three):.1f}", f"{ratio:.3f}")
        ratios[f"three_workers_over_one_{dtype}"] = round(ratio, 3)
    Console().print(table)
    print(json.dumps(ratios))


def _measure(dtype: str, cores: int) -> tuple[list[float], list[float]]:
    """Seconds per token of each round, with one Worker and with three."""
    one: list[float] = []
    three: list[float] = []
    with (
        bench_mesh(dtype, 1, threads=cores) as alone,
        bench_mesh(dtype, 3, threads=max(1, cores // 3)) as together,
    ):
        stream(alone.mesh, NEW_TOKENS)
        stream(together.mesh, NEW_TOKENS)
        for _ in range(ROUNDS):
            one.append(stream(alone.mesh, NEW_TOKENS).token_seconds)
            three.append(stream(together.mesh, NEW_TOKENS).token_seconds)
    return one, three


if __name__ == "__main__":
    main()
