"""How fast a reload can be at best, and whether two chains of all fit; see `churn_bound`."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

from bench.placement.churn_traces import Machine, Model

Layer = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Live:
    """A Worker that is alive, and the Layers that are ready there."""

    machine: Machine
    ready: frozenset[Layer]


def reload_seconds(layers: int, lines: Sequence[tuple[float, int]]) -> float:
    """Return how long so many Layers take at best, over lines of (Layers per second, room).

    Whole Layers, one after the other on each line. Room for all there may be none, since others
    have to move first: then it takes as long as the rooms that there are let it.
    """
    done = sorted(
        count / speed for speed, room in lines for count in range(1, min(room, layers) + 1)
    )
    return done[min(layers, len(done)) - 1] if done else 0.0


def most_covered(models: Sequence[Model], capacity: int) -> float:
    """Return the most demand that so many Layers of capacity have room for."""
    return max(
        sum(model.weight for model in chosen)
        for count in range(len(models) + 1)
        for chosen in combinations(models, count)
        if sum(model.layers for model in chosen) <= capacity
    )


def two_chains_fit(capacities: Sequence[int], models: Sequence[int]) -> bool:
    """Whether two chains of every model fit, each Worker with one run of a model.

    Filled one after the other, each with few and tightly; what a Worker has left goes to the next
    chain unless that is of the same model.
    """
    waiting = sorted(capacities)
    left, of_model = 0, -1
    for _ in range(2):
        for model, layers in enumerate(models):
            need = layers - (left if of_model != model else 0)
            while need > 0 and waiting:
                # The smallest that is enough, else the largest.
                need -= waiting.pop(min(bisect_left(waiting, need), len(waiting) - 1))
            if need > 0:
                return False
            left, of_model = -need, model
    return True


def missing_layers(models: Sequence[Model], live: Collection[Live]) -> dict[str, list[int]]:
    """Give the Layers of each model that are ready nowhere."""
    ready = frozenset().union(*(each.ready for each in live))
    return {
        model.name: [layer for layer in range(model.layers) if (model.name, layer) not in ready]
        for model in models
    }


def _alone(each: Live, live: Collection[Live]) -> frozenset[Layer]:
    """Give the Layers that nobody else holds."""
    return each.ready.difference(*(other.ready for other in live if other is not each))


def _room(each: Live, live: Collection[Live], given_up: Collection[str]) -> int:
    kept = [name for name, _ in _alone(each, live) if name not in given_up]
    return each.machine.capacity - len(kept)


def helping_lines(
    live: Collection[Live],
    model: str,
    gaps: Collection[int],
    needed: int,
    given_up: Collection[str] = (),
) -> list[tuple[float, int]]:
    """Give (Layers per second, room) of those that can help with a reload, as few as will do.

    What they hold of models that are given up for it is room.
    """
    able = sorted(
        ((each, room) for each in live if (room := _room(each, live, given_up)) > 0),
        key=lambda pair: (-pair[0].machine.layers_per_second, pair[0].machine.name),
    )
    first: list[tuple[float, int]] = []
    others: list[tuple[float, int]] = []
    edges: set[int] = set()
    for each, room in able:
        held = {layer for name, layer in each.ready if name == model}
        ends = {edge for edge in (min(held) - 1, max(held) + 1) if edge in gaps} if held else set()
        line = (each.machine.layers_per_second, room)
        (others if held and not ends - edges else first).append(line)
        edges |= ends
    return first if sum(room for _, room in first) >= needed else [*first, *others]
