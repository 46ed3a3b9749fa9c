"""Instances small enough to try every placement: how near the planner comes to the best.

Drawn at random by seed from the published devices, with their tables cut to few Layers. Which
Workers are of one kind does not matter, so equal ones are tried once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.placement.instances import Instance, Link, Node, Placement, load
from bench.placement.planner import plan_from_nothing
from bench.placement.simulator import simulate
from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange

SEEDS = range(1, 9)
SECONDS = 30.0
FINALISTS = 10
HEADINGS = ("seed", "layers", "workers", "best tokens/s", "planner", "ratio", "best", "its")


def small_instance(seed: int) -> Instance:
    """Draw three to five Workers and five to eight Layers that they can cover."""
    random = Random(seed)
    whole = load("het42")
    kinds = {node.device.name: node.device for node in whole.nodes}
    while True:
        layers = random.randint(4, 6)
        count = random.randint(3, 4)
        drawn = [kinds[random.choice(("A100", "L4", "T4", "V100"))] for _ in range(count)]
        rooms = [min(random.randint(2, 5), len(device.rates)) for device in drawn]
        if layers <= sum(rooms) <= 2.5 * layers:
            break
    nodes = tuple(
        Node(
            WorkerId(f"{device.name}-{index}"),
            replace(
                device,
                rates=device.rates[:room],
                memory_bytes=_memory(device.memory_bytes, len(device.rates), room),
            ),
            "site",
        )
        for index, (device, room) in enumerate(zip(drawn, rooms, strict=True))
    )
    name, inside = f"small{seed}", Link(1e-3, 1e9)
    return replace(whole, name=name, layers=layers, nodes=nodes, placements={}, inside=inside)


def placements(instance: Instance) -> Iterator[Placement]:
    """Yield every placement without a gap, of equal Workers' permutations one only."""
    for runs in product(*(_runs(node, instance.layers) for node in instance.nodes)):
        if _covers(runs, instance.layers) and _is_first(instance.nodes, runs):
            yield {
                node.worker_id: run
                for node, run in zip(instance.nodes, runs, strict=True)
                if run is not None
            }


def best_placement(instance: Instance) -> tuple[float, Placement]:
    """Try all in a short run, and those that did best there in a long one."""
    promising = sorted(placements(instance), key=lambda each: -_short(instance, each))[:FINALISTS]
    return max(
        ((measured(instance, placement), placement) for placement in promising),
        key=lambda scored: scored[0],
    )


def measured(instance: Instance, placement: Placement) -> float:
    """Tokens per second in a long run."""
    return simulate(instance, placement, seconds=SECONDS, warm_up_seconds=10.0).tokens_per_second


def _short(instance: Instance, placement: Placement) -> float:
    return simulate(instance, placement, seconds=3.0, warm_up_seconds=2.0).tokens_per_second


def small_ratios(seeds: Sequence[int] = SEEDS) -> dict[str, Any]:
    """Print how the planner does on each, and answer the ratios."""
    table = Table(title="small instances, every placement tried")
    for heading in HEADINGS:
        table.add_column(heading)
    ratios = {}
    for seed in seeds:
        instance = small_instance(seed)
        best, placement = best_placement(instance)
        planned = plan_from_nothing(instance).placement
        mine = measured(instance, planned)
        ratios[seed] = mine / best
        table.add_row(
            str(seed),
            str(instance.layers),
            " ".join(f"{node.worker_id}:{node.device.capacity}" for node in instance.nodes),
            f"{best:.0f}",
            f"{mine:.0f}",
            f"{mine / best:.3f}",
            _text(placement),
            _text(planned),
        )
    Console(width=160).print(table)
    return {
        "instances": len(ratios),
        "worst": round(min(ratios.values()), 3),
        "mean": round(sum(ratios.values()) / len(ratios), 3),
        "ratios": {str(seed): round(ratio, 3) for seed, ratio in ratios.items()},
    }


def _memory(memory_bytes: int, most: int, room: int) -> int:
    """Cut the memory so that under the same headroom so many Layers fit."""
    return memory_bytes * room // most


def _runs(node: Node, layers: int) -> list[ShardRange | None]:
    room = min(node.device.capacity, layers)
    return [
        None,
        *(
            ShardRange(start, start + length)
            for length in range(1, room + 1)
            for start in range(layers - length + 1)
        ),
    ]


def _covers(runs: Sequence[ShardRange | None], layers: int) -> bool:
    covered = {layer for run in runs if run is not None for layer in run.layers}
    return len(covered) == layers


def _is_first(nodes: Sequence[Node], runs: Sequence[ShardRange | None]) -> bool:
    """Whether equal Workers hold their runs in order."""
    for index, (node, run) in enumerate(zip(nodes, runs, strict=True)):
        for other, other_run in zip(nodes[:index], runs[:index], strict=True):
            if other.device == node.device and _key(other_run) > _key(run):
                return False
    return True


def _key(run: ShardRange | None) -> tuple[int, int]:
    return (-1, -1) if run is None else (run.start, run.end)


def _text(placement: Placement) -> str:
    return " ".join(f"[{run.start},{run.end})" for _, run in sorted(placement.items()))
