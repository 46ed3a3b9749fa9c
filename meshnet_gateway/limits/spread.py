"""In which order the Endpoints of a model are tried: least loaded, in turn, by warm cache; pure.

Loads are shares of each Endpoint's own limit, so that one which holds twice as much gets twice as
much. Each order leaves out those that are at their limit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import log

from meshnet_common.affinity import share

UNBALANCED_BY = 64
UNBALANCED_RATIO = 1.5
"""A warm cache no longer counts where the most loaded Endpoint has both so many requests more, and
so many times as many, as the least loaded one."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is known of an Endpoint when a request is to be placed."""

    name: str
    in_flight: int
    limit: int
    weight: float = 1.0
    last_turn: int = 0
    """Number of the last request that went there, counted over all Endpoints."""

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.limit

    @property
    def load(self) -> float:
        return self.in_flight / self.limit


def least_loaded(candidates: Iterable[Candidate], key: str | None) -> tuple[Candidate, ...]:
    """Order by load; among equals by the hash of `key`, or without one by the longest idle."""

    def rank(candidate: Candidate) -> tuple[float, float]:
        tie = candidate.last_turn if key is None else distance(key, candidate)
        return (candidate.load, tie)

    return tuple(sorted(_with_room(candidates), key=rank))


def in_turn(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Order by whose turn is longest ago."""
    return tuple(sorted(_with_room(candidates), key=lambda candidate: candidate.last_turn))


def warmest(candidates: Iterable[Candidate], key: str) -> tuple[Candidate, ...]:
    """Order by the hash of `key`, the same for all turns of a conversation, while loads allow."""
    known = tuple(candidates)
    if _unbalanced([candidate.in_flight for candidate in known]):
        return least_loaded(known, key)
    return tuple(sorted(_with_room(known), key=lambda candidate: distance(key, candidate)))


def distance(key: str, candidate: Candidate) -> float:
    """Say how far a key is from an Endpoint: weighted rendezvous hashing, the least wins.

    An Endpoint that goes moves only its own keys, and one of twice the weight gets twice as many.
    """
    # An exponential draw with the weight as its rate: the least of several is each one's with a
    # chance that is its share of all weights. 1 - u lies in (0, 1], where the logarithm is finite.
    return -log(1.0 - share(key, candidate.name)) / candidate.weight


def _with_room(candidates: Iterable[Candidate]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.has_room]


def _unbalanced(loads: list[int]) -> bool:
    most, least = max(loads, default=0), min(loads, default=0)
    return most - least > UNBALANCED_BY and most > UNBALANCED_RATIO * least
