"""What others do with the same machines: placements to compare the planner's with."""

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random

from bench.placement.instances import Instance, Node, Placement
from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange


def memory_ring(instance: Instance) -> Placement:
    """Exo's rule: one ring over all, Layers in proportion to free memory, in the given order."""
    weights = [node.device.memory_bytes for node in instance.nodes]
    shares = [instance.layers * weight / sum(weights) for weight in weights]
    rooms = [_room(node) for node in instance.nodes]
    counts = [min(int(share), room) for share, room in zip(shares, rooms, strict=True)]
    # Largest remainder: who is furthest below its share gets the next Layer.
    while (missing := instance.layers - sum(counts)) > 0:
        open_nodes = [i for i, room in enumerate(rooms) if counts[i] < room]
        if not open_nodes:
            break
        open_nodes.sort(key=lambda i: (counts[i] - shares[i], i))
        for index in open_nodes[:missing]:
            counts[index] += 1
    return _ring(instance.nodes, counts)


def balanced_ring(instance: Instance) -> Placement:
    """One ring over all whose slowest Worker is as fast as can be, found by bisection."""
    rates = sorted({rate for node in instance.nodes for rate in node.device.rates})
    low, high = 0, len(rates) - 1
    if sum(_most(node, rates[0]) for node in instance.nodes) < instance.layers:
        return {}
    while low < high:
        middle = (low + high + 1) // 2
        if sum(_most(node, rates[middle]) for node in instance.nodes) >= instance.layers:
            low = middle
        else:
            high = middle - 1
    return _ring(instance.nodes, _trimmed(instance, rates[low]))


def petals(instance: Instance, seed: int = 1) -> Placement:
    """Petals' rule: one after the other, each takes the window whose weakest Layers are weakest.

    A server announces the tokens per second of its window; nobody moves again. The order in which
    they join is random.
    """
    nodes = list(instance.nodes)
    Random(seed).shuffle(nodes)
    throughput = [0.0] * instance.layers
    placement: dict[WorkerId, ShardRange] = {}
    for node in nodes:
        size = min(_room(node), instance.layers)
        starts = range(instance.layers - size + 1)
        start = min(starts, key=lambda start: (sorted(throughput[start : start + size]), start))
        placement[node.worker_id] = ShardRange(start, start + size)
        for layer in range(start, start + size):
            throughput[layer] += node.device.rates[size - 1]
    return placement


BASELINES: Mapping[str, Callable[[Instance], Placement]] = {
    "memory_ring": memory_ring,
    "balanced_ring": balanced_ring,
    "petals": petals,
}


def _room(node: Node) -> int:
    return node.device.capacity


def _most(node: Node, rate: float) -> int:
    """Count the Layers that it can hold and still run so many tokens per second."""
    return max((k for k, other in enumerate(node.device.rates, 1) if other >= rate), default=0)


def _trimmed(instance: Instance, rate: float) -> list[int]:
    """Take away what is too much, where the rate is smallest, without falling below it."""
    counts = [_most(node, rate) for node in instance.nodes]
    rates = [(math.inf, *node.device.rates) for node in instance.nodes]
    for _ in range(sum(counts) - instance.layers):
        able = [i for i, count in enumerate(counts) if count and rates[i][count - 1] >= rate]
        slowest = min(able, key=lambda i: (rates[i][counts[i]], -i))
        counts[slowest] -= 1
    return counts


def _ring(nodes: Sequence[Node], counts: Sequence[int]) -> Placement:
    placement = {}
    position = 0
    for node, layers in zip(nodes, counts, strict=True):
        if layers:
            placement[node.worker_id] = ShardRange(position, position + layers)
            position += layers
    return placement
