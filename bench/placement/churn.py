"""Uncovered time under random churn, beside what no planner could have avoided.

`python -m bench.placement.churn --traces 1000 --seed 1` plays that many traces through the real
planner and prints a table, the worst traces by seed, and one JSON object. `--hours 1000` plays one
Mesh for so long instead, and prints how the process's memory grew. `--trace SEED` shows one trace:
what happened, what was planned, and each gap with what of it was forced.
"""

import argparse
import gc
import json
import sys
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.placement.churn_bound import Cause
from bench.placement.churn_mesh import ChurnMesh
from bench.placement.churn_traces import Trace, random_trace

WORST = 15


@dataclass(frozen=True, slots=True)
class Score:
    """What came of one trace."""

    seed: int
    uncovered_seconds: float
    forced_seconds: float
    gaps_opened: int
    passes: int
    loaded_layers: int
    excess_of: Mapping[Cause, float]
    """Excess seconds by how the gaps came about."""

    @property
    def excess_seconds(self) -> float:
        return self.uncovered_seconds - self.forced_seconds


def score(trace: Trace) -> Score:
    """Play a trace to its end."""
    mesh = ChurnMesh(trace)
    mesh.play()
    ledger = mesh.ledger
    return Score(
        trace.seed,
        ledger.uncovered_seconds,
        ledger.forced_seconds,
        mesh.gaps_opened,
        mesh.passes,
        mesh.loaded_layers,
        _excess(mesh),
    )


def _excess(mesh: ChurnMesh) -> dict[Cause, float]:
    weights = {model.name: model.weight / mesh.ledger.weights for model in mesh.trace.models}
    excess = dict.fromkeys(Cause, 0.0)
    for gap in mesh.ledger.gaps:
        seconds = gap.until - gap.since - gap.forced_seconds
        excess[gap.cause] += weights[gap.model] * seconds
    return excess


def main(arguments: Sequence[str]) -> None:
    """Print the table and, as the last line, the figures as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--trace", type=int)
    chosen = parser.parse_args(arguments)
    if chosen.trace is not None:
        facts = one_trace(chosen.trace)
    elif chosen.hours:
        facts = long_churn(chosen.hours, chosen.seed)
    else:
        facts = many_traces(range(chosen.seed, chosen.seed + chosen.traces))
    sys.stdout.write(json.dumps(facts) + "\n")


def many_traces(seeds: Sequence[int]) -> dict[str, Any]:
    """Play a trace for each seed."""
    begun = process_time()
    scores = [score(random_trace(seed)) for seed in seeds]
    uncovered = sum(each.uncovered_seconds for each in scores)
    forced = sum(each.forced_seconds for each in scores)
    worst = sorted(scores, key=lambda each: -each.excess_seconds)[:WORST]
    table = Table(title=f"{len(scores)} traces: uncovered {uncovered:.0f} s, bound {forced:.0f} s")
    for heading in ("seed", "uncovered s", "bound s", "excess s", "gaps opened", "passes"):
        table.add_column(heading, justify="right")
    for each in worst:
        table.add_row(
            str(each.seed),
            f"{each.uncovered_seconds:.1f}",
            f"{each.forced_seconds:.1f}",
            f"{each.excess_seconds:.1f}",
            str(each.gaps_opened),
            str(each.passes),
        )
    Console(width=100).print(table)
    return {
        "traces": len(scores),
        "uncovered_s": round(uncovered, 1),
        "bound_s": round(forced, 1),
        "ratio": round(uncovered / forced, 4) if forced else None,
        "excess_s": {
            cause.value: round(sum(each.excess_of[cause] for each in scores), 1) for cause in Cause
        },
        "gaps_opened_by_plans": sum(each.gaps_opened for each in scores),
        "passes": sum(each.passes for each in scores),
        "loaded_layers": sum(each.loaded_layers for each in scores),
        "worst_seeds": [each.seed for each in worst],
        "cpu_s": round(process_time() - begun, 1),
    }


def one_trace(seed: int) -> dict[str, Any]:
    """Show one trace event by event."""
    trace = random_trace(seed)
    console = Console(width=140)
    for model in trace.models:
        console.print(f"{model.name}: {model.layers} Layers, weight {model.weight:g}")
    mesh = ChurnMesh(trace, tell=lambda text: console.print(text, highlight=False))
    mesh.play()
    for gap in mesh.ledger.gaps:
        excess = gap.until - gap.since - gap.forced_seconds
        console.print(
            f"{gap.model} ({gap.cause}) uncovered {gap.since:8.1f} to {gap.until:8.1f}: "
            f"forced {gap.forced_seconds:.1f}, excess {excess:.1f}"
        )
    ledger = mesh.ledger
    return {"uncovered_s": ledger.uncovered_seconds, "bound_s": ledger.forced_seconds}


def long_churn(hours: float, seed: int) -> dict[str, Any]:
    """Play one long trace hour by hour; memory that is kept must not grow with it."""
    mesh = ChurnMesh(random_trace(seed, hours * 3600))
    events = list(mesh.trace.events)
    kept: list[tuple[float, float]] = []
    tracemalloc.start()
    for hour in range(1, int(hours) + 1):
        now = [event for event in events if (hour - 1) * 3600 <= event.at < hour * 3600]
        mesh.play(now, until=hour * 3600.0)
        if hour in {int(hours * tenth / 10) for tenth in range(1, 11)}:
            gc.collect()
            kept.append((hour, tracemalloc.get_traced_memory()[0] / 1e6))
    tracemalloc.stop()
    table = Table(title=f"{hours:.0f} simulated hours: memory that is kept")
    table.add_column("hour", justify="right")
    table.add_column("MB", justify="right")
    for hour_, megabytes in kept:
        table.add_row(f"{hour_:.0f}", f"{megabytes:.2f}")
    Console(width=100).print(table)
    return {
        "hours": hours,
        "passes": mesh.passes,
        "first_mb": round(kept[0][1], 2),
        "last_mb": round(kept[-1][1], 2),
        "uncovered_s": round(mesh.ledger.uncovered_seconds, 1),
        "bound_s": round(mesh.ledger.forced_seconds, 1),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
