"""Sessions in one, two and three groups: how many tokens three single-threaded Workers give.

All in one Batch, only one Hop works at a time; in as many groups as the Route has Hops, all do, but
each reads its weights for fewer rows. Three meshes, interleaved rounds, steps uncompiled.
"""

import json
import os
import sys
from contextlib import ExitStack

from rich.console import Console
from rich.table import Table

from bench.load import run_streams
from bench.meshes import PROMPT, bench_mesh, median

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
GROUPS = (1, 2, 3)
WIDTHS = (4, 8, 16)
NEW_TOKENS = 48
HOPS = 3


def main(dtype: str) -> None:
    """Print the table and, as the last line, the tokens per second as JSON."""
    speeds: dict[tuple[int, int], list[float]] = {(g, w): [] for g in GROUPS for w in WIDTHS}
    with ExitStack() as meshes:
        urls = {}
        for groups in GROUPS:
            options = ("--decode-groups", str(groups), "--no-compile")
            bench = meshes.enter_context(bench_mesh(dtype, HOPS, options=options))
            urls[groups] = bench.mesh.tracker_url
            run_streams(urls[groups], [PROMPT] * WIDTHS[0], NEW_TOKENS)
        for _ in range(ROUNDS):
            for width in WIDTHS:
                for groups in GROUPS:
                    streams = run_streams(urls[groups], [PROMPT] * width, NEW_TOKENS)
                    speeds[groups, width].append(streams.tokens_per_second)
    table = Table(title=f"tokens/s of all streams, {dtype}")
    for heading in ("groups", *(f"{width} streams" for width in WIDTHS)):
        table.add_column(heading, justify="right")
    for groups in GROUPS:
        row = [f"{median(speeds[groups, width]):.1f}" for width in WIDTHS]
        table.add_row(str(groups), *row)
    Console().print(table)
    figures = {
        f"groups_{groups}_streams_{width}": round(median(values), 1)
        for (groups, width), values in speeds.items()
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "float32")
