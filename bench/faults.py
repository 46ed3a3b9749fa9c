"""The fault table: each cell's verdict, and how long its clients saw no text.

One Mesh on loopback, one Session at a time, float32, prompts of 60 tokens (380 where Prefill is
hit) and answers of 100. Stalls are of streamed answers after SIGKILL and SIGSTOP with a replica:
the longest time between two events with text, the request's beginning counted as one. In odd
rounds those answers are whole, so that both forms are failed over.

    python -m bench.faults [--rounds N] [--seed S] [--only WORD ...]
"""

import argparse
import json
import random
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from demo.processes import DeadlineError
from tests.mesh.faults.cells import (
    Cell,
    CellResult,
    CellRunner,
    Verdict,
    all_cells,
    ask_for,
)
from tests.mesh.faults.fault_mesh import fault_mesh
from tests.mesh.faults.harm import Fault

STALL_FAULTS = (Fault.KILL, Fault.FREEZE)


def main() -> int:
    """Print the table and, as the last line, the figures as JSON; 1 if any cell is wrong."""
    options = _options()
    # A benchmark that is told to stop still ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cells = [cell for cell in all_cells() if all(word in str(cell) for word in options.only)]
    with TemporaryDirectory(prefix="meshnet-faults-") as folder, fault_mesh(Path(folder)) as mesh:
        runner = CellRunner(mesh, random.Random(options.seed))
        results = [
            result
            for number in range(options.rounds)
            for result in _round(runner, cells, number, options.seed)
        ]
        runner.finish()
    return _show(cells, results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.faults")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", nargs="*", default=[], help="words that a cell must have, such as kill or head"
    )
    return parser.parse_args()


def _round(runner: CellRunner, cells: Sequence[Cell], number: int, seed: int) -> list[CellResult]:
    results = []
    for index, cell in enumerate(cells):
        rng = random.Random(f"{seed} {number} {cell}")
        turn = number if cell.fault in STALL_FAULTS else number + index
        ask = ask_for(cell, rng, streamed=turn % 2 == 0)
        try:
            result = runner.run(cell, ask)
        except (DeadlineError, TimeoutError) as error:
            result = CellResult(cell, ask, faults_found=[str(error)])
        print(result, file=sys.stderr, flush=True)
        results.append(result)
    return results


def _show(cells: Sequence[Cell], results: Sequence[CellResult]) -> int:
    columns = ("fault", "place", "phase", "replica", "verdicts", "median stall s", "worst stall s")
    table = Table(*columns)
    for cell in cells:
        own = [result for result in results if result.cell == cell]
        verdicts = Counter(result.verdict.value for result in own)
        told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        stalls = [result.stall_seconds for result in own if result.ask.streamed]
        shown = [f"{statistics.median(stalls):.2f}", f"{max(stalls):.2f}"] if stalls else ["", ""]
        replica = "yes" if cell.has_replica else "no"
        table.add_row(cell.fault.value, cell.place, cell.phase.value, replica, told, *shown)
    Console(width=120).print(table)
    verdicts = Counter(result.verdict for result in results)
    stalls = [result.stall_seconds for result in results if _tells_stall(result)]
    figures = {
        "cells": len(results),
        "identical": verdicts[Verdict.IDENTICAL],
        "clean_errors": verdicts[Verdict.CLEAN_ERROR],
        "wrong": verdicts[Verdict.WRONG],
        "median_stall_s": round(statistics.median(stalls), 3) if stalls else None,
        "worst_stall_s": round(max(stalls), 3) if stalls else None,
    }
    print(json.dumps(figures))
    return int(bool(figures["wrong"]))


def _tells_stall(result: CellResult) -> bool:
    cell = result.cell
    return cell.has_replica and cell.fault in STALL_FAULTS and result.ask.streamed


if __name__ == "__main__":
    sys.exit(main())
