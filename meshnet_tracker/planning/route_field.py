"""What a search for a Route is about: who may take part, and what it costs; pure figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshnet_common.shard_range import ShardRange


class Entrant(NamedTuple):
    """Who may take part: the Layers that it holds of those to be run, and what each costs."""

    run: ShardRange
    layer_seconds: float
    begin_seconds: float = 0.0
    """What it costs that it is the first."""
    may_begin: bool = True


@dataclass(frozen=True, slots=True)
class Field:
    """Which Layers are to be run, by whom, and what it costs to get from one to another."""

    layers: ShardRange
    entrants: tuple[Entrant, ...]
    take_over_seconds: Sequence[Sequence[float]]
    """For each by number: what it costs to take over from each; from itself infinitely much."""
    end_seconds: Sequence[Sequence[float]]
    """For each that is the last one: what it costs to tell each that is the first one."""
    first_ones: tuple[frozenset[int], ...] = ()
    """Those who may begin, such that in one set it costs each about the same to be told."""
    good_enough: float = 0.0
    """By which share a way may be dearer than the best before others are tried to begin it."""


class Turn(NamedTuple):
    """An entrant runs the Layers [start, end)."""

    entrant: int
    start: int
    end: int


def seconds_of(field: Field, turns: Sequence[Turn]) -> float:
    """Add up what these turns cost."""
    first = turns[0].entrant
    seconds = field.entrants[first].begin_seconds
    for number, turn in enumerate(turns):
        if number:
            seconds += field.take_over_seconds[turn.entrant][turns[number - 1].entrant]
        seconds += (turn.end - turn.start) * field.entrants[turn.entrant].layer_seconds
    return seconds + field.end_seconds[turns[-1].entrant][first]
