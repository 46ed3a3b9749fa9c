"""How much a placement lets through, as linear programs: tokens per second, prompt and output.

With partial entry any Worker may run any of its Layers, so that a placement carries what the linear
program of the planner's design says. With whole Shards a Route goes from one Worker only to those
that begin where it ends, and links carry so many tokens per second: a maximum flow.
"""

from collections import defaultdict
from collections.abc import Sequence

from scipy.optimize import linprog  # type: ignore[import-untyped]
from scipy.sparse import coo_array  # type: ignore[import-untyped]

from bench.placement.instances import Instance, Node, Placement
from meshnet_common.ids import WorkerId

SOURCE = WorkerId("")
SINK = WorkerId("~")
UNLIMITED = 1e9

Entry = tuple[int, int, float]


def upper_bound(instance: Instance) -> float:
    """All speed there is at its best, spread evenly: no placement carries more."""
    return sum(max(node.device.layer_rates) for node in instance.nodes) / instance.layers


def partial_flow(instance: Instance, placement: Placement) -> float:
    """Maximise T, so that every Layer is run T times a second and nobody exceeds its rate."""
    shares = [
        (worker_id, layer) for worker_id, run in sorted(placement.items()) for layer in run.layers
    ]
    if {layer for _, layer in shares} != set(range(instance.layers)):
        return 0.0
    rows: dict[WorkerId, int] = {
        worker_id: instance.layers + index for index, worker_id in enumerate(sorted(placement))
    }
    total = len(shares)
    entries: list[Entry] = []
    for column, (worker_id, layer) in enumerate(shares):
        entries += [(layer, column, -1.0), (rows[worker_id], column, 1.0)]
    entries += [(layer, total, 1.0) for layer in range(instance.layers)]
    limits = [0.0] * instance.layers + [
        instance.node(worker_id).device.layer_rates[len(run) - 1]
        for worker_id, run in sorted(placement.items())
    ]
    return _largest(total, entries, limits, [])


def whole_flow(instance: Instance, placement: Placement) -> float:
    """Let tokens flow from Layer 0 to the last through whole Shards and over links."""
    edges = _edges(instance, placement)
    leaving: dict[WorkerId, list[int]] = defaultdict(list)
    entering: dict[WorkerId, list[int]] = defaultdict(list)
    for index, (sender, receiver, _) in enumerate(edges):
        leaving[sender].append(index)
        entering[receiver].append(index)
    total = len(edges)
    balance: list[Entry] = [(0, total, -1.0), *((0, index, 1.0) for index in leaving[SOURCE])]
    bounds: list[Entry] = [(index, index, 1.0) for index in range(total)]
    limits = [capacity for _, _, capacity in edges]
    for row, (worker_id, run) in enumerate(sorted(placement.items()), 1):
        balance += [(row, index, 1.0) for index in entering[worker_id]]
        balance += [(row, index, -1.0) for index in leaving[worker_id]]
        bounds += [(len(limits), index, 1.0) for index in entering[worker_id]]
        limits.append(instance.node(worker_id).device.rates[len(run) - 1])
    return _largest(total, bounds, limits, balance)


def _edges(instance: Instance, placement: Placement) -> list[tuple[WorkerId, WorkerId, float]]:
    beginning: dict[int, list[Node]] = defaultdict(list)
    for worker_id, run in sorted(placement.items()):
        beginning[run.start].append(instance.node(worker_id))
    edges = [(SOURCE, node.worker_id, UNLIMITED) for node in beginning[0]]
    for worker_id, run in sorted(placement.items()):
        if run.end == instance.layers:
            edges.append((worker_id, SINK, UNLIMITED))
        for following in beginning[run.end]:
            link = instance.link(instance.node(worker_id), following)
            carried = link.bytes_per_second / instance.hop_bytes_per_token
            edges.append((worker_id, following.worker_id, carried))
    return edges


def _largest(
    column: int, entries: Sequence[Entry], limits: Sequence[float], balance: Sequence[Entry]
) -> float:
    """Maximise the variable in the last column, all of them at least zero."""
    answer = linprog(
        [0.0] * column + [-1.0],
        A_ub=_matrix(entries, column + 1, len(limits)),
        b_ub=limits,
        A_eq=_matrix(balance, column + 1, _height(balance)) if balance else None,
        b_eq=[0.0] * _height(balance) if balance else None,
        method="highs",
    )
    return max(0.0, float(answer.x[column]))


def _height(entries: Sequence[Entry]) -> int:
    return 1 + max(row for row, _, _ in entries)


def _matrix(entries: Sequence[Entry], width: int, height: int) -> coo_array:
    rows, columns, values = zip(*entries, strict=True)
    return coo_array((values, (rows, columns)), shape=(height, width))
