"""How a Coverage Gap is loaded soonest: spread over many lines, each as much as its speed allows.

Every further Worker in it is a further Hop, so no more take part than make a difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from meshnet_common.ids import WorkerId

NEAR = 1.1
NEAR_SECONDS = 1.0
"""A time that is so near the shortest is good enough, if fewer Workers reach it."""
ROUNDS = 40


@dataclass(frozen=True, slots=True)
class Line:
    """What a Worker could load: Layers that it has room for, at so many a second, after a delay."""

    worker_id: WorkerId
    layers: int
    layers_per_second: float
    delay_seconds: float = 0.0

    def loaded(self, seconds: float) -> int:
        """Count the whole Layers that it has by then."""
        turn = max(0.0, seconds - self.delay_seconds)
        return min(self.layers, floor(turn * self.layers_per_second))


def shares(lines: Sequence[Line], layers: int) -> dict[WorkerId, int]:
    """Say how many Layers each loads, so that all are there soonest; empty: they have no room."""
    able = [line for line in lines if line.layers > 0 and line.layers_per_second > 0]
    if sum(line.layers for line in able) < layers:
        return {}
    limit = _shortest(able, layers) * NEAR + NEAR_SECONDS
    ranked = sorted(able, key=lambda line: (-line.loaded(limit), line.worker_id))
    chosen: list[Line] = []
    while sum(line.loaded(limit) for line in chosen) < layers:
        chosen.append(ranked[len(chosen)])
    seconds = _shortest(chosen, layers)
    taken: dict[WorkerId, int] = {}
    for line in chosen:
        count = min(line.loaded(seconds), layers)
        if count > 0:
            taken[line.worker_id] = count
            layers -= count
    return taken


def _shortest(lines: Sequence[Line], layers: int) -> float:
    """Search for the time after which all Layers are there."""
    slowest = min(line.layers_per_second for line in lines)
    low, high = 0.0, max(line.delay_seconds for line in lines) + (layers + 1) / slowest
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if sum(line.loaded(middle) for line in lines) >= layers:
            high = middle
        else:
            low = middle
    return high
