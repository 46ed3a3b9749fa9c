"""Which part of its Layers each Worker of a placement loads first, so that all are there soonest.

Copies of a placement overlap, and lines differ: a Layer is loaded first by whoever has it soonest.
The rest of a Worker's Layers follows when its first part is there (`completing.py`).
"""

from collections.abc import Mapping, Sequence
from math import floor

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.orders import Placement

ROUNDS = 30


def first_parts(
    placed: Placement, layers_per_second: Mapping[WorkerId, float], layer_count: int
) -> tuple[Placement, float]:
    """Return what each Worker loads first, and after how many seconds all Layers are there.

    Whoever the Mesh does not wait for loads all of its part.
    """
    ranked = sorted(placed.items(), key=lambda each: (each[1], each[0]))
    slowest = min(layers_per_second[worker_id] for worker_id in placed)
    low, high = 0.0, (layer_count + 1) / slowest
    best = _reached(ranked, layers_per_second, layer_count, high)
    if best is None:
        return placed, high
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        reached = _reached(ranked, layers_per_second, layer_count, middle)
        if reached is None:
            low = middle
        else:
            best, high = reached, middle
    parts = {worker_id: best.get(worker_id, whole) for worker_id, whole in placed.items()}
    return parts, high


def _reached(
    ranked: Sequence[tuple[WorkerId, ShardRange]],
    layers_per_second: Mapping[WorkerId, float],
    layer_count: int,
    seconds: float,
) -> Placement | None:
    """Cover all Layers in this time, each by who reaches furthest from it; None if none can."""
    parts: Placement = {}
    position = 0
    while position < layer_count:
        end, worker_id = max(
            (
                (min(whole.end, position + floor(seconds * layers_per_second[name])), name)
                for name, whole in ranked
                if name not in parts and whole.start <= position
            ),
            default=(position, WorkerId("")),
        )
        if end <= position:
            return None
        parts[worker_id] = ShardRange(position, end)
        position = end
    return parts
