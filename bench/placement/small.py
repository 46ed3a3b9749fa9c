"""Instances small enough to try every placement: how near the planner comes to the best.

Where two Workers for every Layer fit, the planner prefers that to speed; so there are two ratios,
to the best of all placements and to the best of those that survive as much as the planner's.

Drawn at random by seed from the published devices, with their tables cut to few Layers. Which
Workers are of one kind does not matter, so equal ones are tried once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from random import Random
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.placement.instances import Device, Instance, Node, Placement, load, replicas
from bench.placement.planner import plan_from_nothing
from bench.placement.simulator import simulate
from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange

SEEDS = range(1, 9)
SECONDS = 30.0
MOST_PLACEMENTS = 600
FINALISTS = 10
HEADINGS = ("seed", "layers", "workers", "planner", "best of all", "ratio", "best as safe", "ratio")

Best = tuple[float, Placement]
"""Tokens per second, and the placement that gave them."""


def small_instance(seed: int) -> Instance:
    """Draw three or four Workers and four to six Layers that they can cover."""
    random = Random(seed)
    whole = load("q10" if seed % 2 else "het42")
    kinds = sorted({node.device.name: node.device for node in whole.nodes}.items())
    while True:
        layers = random.randint(4, 6)
        nodes = tuple(
            Node(WorkerId(f"{name}-{index}"), _cut(device, random.randint(2, 5)), "site")
            for index, (name, device) in enumerate(random.choices(kinds, k=random.randint(3, 4)))
        )
        drawn = replace(whole, name=f"small{seed}", layers=layers, nodes=nodes, placements={})
        if 0 < sum(1 for _ in islice(placements(drawn), MOST_PLACEMENTS + 1)) <= MOST_PLACEMENTS:
            return drawn


def placements(instance: Instance) -> Iterator[Placement]:
    """Yield every placement without a gap, of equal Workers' permutations one only."""
    for runs in product(*(_runs(node, instance.layers) for node in instance.nodes)):
        if _covers(runs, instance.layers) and _is_first(instance.nodes, runs):
            yield {
                node.worker_id: run
                for node, run in zip(instance.nodes, runs, strict=True)
                if run is not None
            }


def best_placements(instance: Instance, copies: int) -> tuple[Best, Best]:
    """Find the best of all, and the best of those with so many Workers at the thinnest Layer.

    All are tried in a short run, and those that did best there in a long one.
    """
    tried = sorted(placements(instance), key=lambda each: -_short(instance, each))
    safe = [each for each in tried if replicas(instance, each) >= copies]
    finals = [(measured(instance, each), each) for each in tried[:FINALISTS]]
    safe_finals = [(measured(instance, each), each) for each in safe[:FINALISTS]]
    as_safe = max(safe_finals, key=lambda scored: scored[0])
    return max([*finals, as_safe], key=lambda scored: scored[0]), as_safe


def measured(instance: Instance, placement: Placement) -> float:
    """Tokens per second in a long run."""
    return simulate(instance, placement, seconds=SECONDS, warm_up_seconds=10.0).tokens_per_second


def _short(instance: Instance, placement: Placement) -> float:
    return simulate(instance, placement, seconds=2.5, warm_up_seconds=1.5).tokens_per_second


def small_ratios(seeds: Sequence[int] = SEEDS) -> dict[str, Any]:
    """Print how the planner does on each, and answer the ratios."""
    table = Table(title="small instances, every placement tried")
    for heading in HEADINGS:
        table.add_column(heading)
    of_best, of_safe = {}, {}
    for seed in seeds:
        instance = small_instance(seed)
        planned = plan_from_nothing(instance).placement
        copies = replicas(instance, planned)
        best, as_safe = best_placements(instance, copies)
        mine = measured(instance, planned)
        of_best[str(seed)] = round(mine / best[0], 3)
        of_safe[str(seed)] = round(mine / as_safe[0], 3)
        table.add_row(
            str(seed),
            str(instance.layers),
            " ".join(f"{node.worker_id}:{node.device.capacity}" for node in instance.nodes),
            f"{mine:.0f} {_text(planned)}",
            f"{best[0]:.0f} {_text(best[1])}",
            str(of_best[str(seed)]),
            f"{as_safe[0]:.0f} {_text(as_safe[1])}",
            str(of_safe[str(seed)]),
        )
    Console(width=180).print(table)
    return {
        "instances": len(of_best),
        "worst": min(of_best.values()),
        "mean": round(fmean(of_best.values()), 3),
        "worst_as_safe": min(of_safe.values()),
        "mean_as_safe": round(fmean(of_safe.values()), 3),
        "ratios": of_best,
        "ratios_as_safe": of_safe,
    }


def _cut(device: Device, room: int) -> Device:
    """Give it so much memory that so many Layers fit.

    With k Layers it then has as much room for KV per Layer as the whole device with more of them
    in proportion, and is faster than that by as much.
    """
    share = room / device.capacity
    rates = (1.0, *device.rates)

    def rate(layers: float) -> float:
        below = min(int(layers), device.capacity - 1)
        return rates[below] + (rates[below + 1] - rates[below]) * (layers - below)

    return replace(
        device,
        memory_bytes=int(device.memory_bytes * share),
        rates=tuple(rate(max(1.0, k / share)) / share for k in range(1, room + 1)),
    )


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
