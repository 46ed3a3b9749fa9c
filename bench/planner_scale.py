"""CPU time of one planning pass and of one Route, by the size of the Mesh.

Each size is planned in a child process of its own, as the Tracker does it; the figure is the median
of five passes. Three Meshes: a running one of which one Worker in a hundred has just been lost and
as many have joined, one in which nobody holds anything, and one with half as many Workers that are
joined by as many at once.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from bench.planner_meshes import big_mesh, churned, fresh_mesh
from meshnet_common.ids import WorkerId
from meshnet_tracker.planning.rebalance import coming_variants, plan_rebalance
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.routes import RouteCosts, choose_route
from meshnet_tracker.planning.snapshot import MeshSnapshot, PlannerPolicy

Plan = Callable[[MeshSnapshot, PlannerPolicy, float], object]

SIZES = (100, 1000, 10_000)
PASSES = 5
MOST_MODELS = 20
WORKERS_PER_MODEL = 50
"""No more models are served than so many Workers each can cover."""
LAYERS = 200
ROUTES = 2000
CHURN = 0.01
CHILD_SECONDS = 300


def models(workers: int) -> int:
    """Return how many models a Mesh of this size serves."""
    return min(MOST_MODELS, workers // WORKERS_PER_MODEL)


def running(workers: int) -> MeshSnapshot:
    """Build the Mesh of a usual pass."""
    return churned(big_mesh(workers, models(workers), LAYERS), CHURN)


def joined(workers: int) -> MeshSnapshot:
    """Build a Mesh that has just doubled."""
    half = big_mesh(workers // 2, models(workers), LAYERS)
    more = (
        replace(worker, worker_id=WorkerId(f"{worker.worker_id}j"), held=())
        for worker in half.workers
    )
    return replace(half, workers=(*half.workers, *more))


def fresh(workers: int) -> MeshSnapshot:
    """Build a Mesh in which nobody holds anything."""
    return fresh_mesh(workers, models(workers), LAYERS)


MESHES = {"running": running, "fresh": fresh, "joined": joined}


def measure(workers: int) -> dict[str, float]:
    """Measure in this process; all figures are CPU seconds."""
    figures: dict[str, float] = {}
    for name, build in MESHES.items():
        snapshot = build(workers)
        figures[name] = _median_seconds(snapshot, plan_rebalance)
        figures[f"{name}_coming"] = _median_seconds(snapshot, coming_variants)
    figures["route"] = _route_seconds(big_mesh(workers, models(workers), LAYERS))
    return figures


def main() -> None:
    """Print the table, and the figures as one JSON object."""
    measured = {size: _in_child(size) for size in SIZES}
    names = list(measured[SIZES[0]])
    print("workers " + "".join(f"{name:>16}" for name in names))
    for size, figures in measured.items():
        print(f"{size:>7} " + "".join(f"{figures[name] * 1e3:>13.3f} ms" for name in names))
    print(json.dumps(_summary(measured)))


def _summary(measured: dict[int, dict[str, float]]) -> dict[str, float]:
    summary = {f"seconds_{size}": measured[size]["running"] for size in SIZES}
    largest = measured[SIZES[-1]]
    summary |= {f"{name}_seconds_{SIZES[-1]}": largest[name] for name in ("fresh", "joined")}
    summary["coming_seconds_10000"] = max(largest[f"{name}_coming"] for name in MESHES)
    for smaller, larger in pairwise(SIZES):
        for name in MESHES:
            ratio = measured[larger][name] / measured[smaller][name]
            summary[f"{name}_growth_{smaller}_{larger}"] = round(ratio, 2)
    summary["route_us"] = largest["route"] * 1e6
    return summary


def _in_child(workers: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.planner_scale", str(workers)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=CHILD_SECONDS)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _median_seconds(snapshot: MeshSnapshot, plan: Plan) -> float:
    seconds = []
    for _ in range(PASSES):
        started = time.process_time()
        plan(snapshot, PlannerPolicy(), 0.0)
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


def _route_seconds(snapshot: MeshSnapshot) -> float:
    """Choose Routes of all models, with heartbeats in between."""
    table = RouteTable.of(snapshot.workers)
    keys = [key for key, _ in snapshot.variants()]
    reported = list(snapshot.workers)
    started = time.process_time()
    for number in range(ROUTES):
        index = number * 7 % len(reported)
        heard = replace(reported[index], sessions=number % 3)
        table.apply(reported[index], heard)
        reported[index] = heard
        costs = RouteCosts(tie_salt=f"session {number}")
        table.settle(number / 200)
        hops = choose_route(table, keys[number % len(keys)], LAYERS, costs=costs)
        table.note(hops, number / 200, 11.0)
    return (time.process_time() - started) / ROUTES


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
    else:
        main()
