"""What a Route that was opened again still lacks, and how little of it must be run once more; pure.

Each Hop has the KV of some first positions; those of a replaced Hop are gone. Its predecessor
sends again what it still has of what it sent, or else token ids go down the Route as far as the
Hop that lacks them. Only what no Hop has yet goes down the whole Route.

    held       Hop 0  |==============|
               Hop 1  |                        replaced
               Hop 2  |=============|
    fills      Hop 1  |-------------|          replayed by Hop 0, or run from token ids by both
    start                            ^         from here down the whole Route
"""

from collections.abc import Sequence
from dataclasses import dataclass

WORTH_A_FILL = 64
"""Fewer positions than these go down the whole Route: a fill costs a round trip of its own."""


@dataclass(frozen=True, slots=True)
class Fill:
    """Positions [start, end) for the Hops up to `last_hop`, which forwards nothing.

    A replay starts at the Hop before that one, from what it sent before.
    """

    start: int
    end: int
    last_hop: int
    is_replay: bool


@dataclass(frozen=True, slots=True)
class Refill:
    """Fills, one after the other; from `start` on everything goes down the whole Route."""

    fills: tuple[Fill, ...]
    start: int


def plan_refill(held: Sequence[int], kept: Sequence[int], known: int) -> Refill:
    """Plan for Hops that hold so many positions, where `known` positions have token ids.

    The last known position always goes down the whole Route: its token is still wanted.
    """
    held = [min(positions, known - 1) for positions in held]
    lowest = min(held)
    best = max(
        # The first of equals: a replay runs nothing on the Hops before.
        (_replayed(held, kept), _from_token_ids(held), _plain(lowest)),
        key=lambda refill: refill.start,
    )
    return best if best.start - lowest > WORTH_A_FILL else _plain(lowest)


def _plain(start: int) -> Refill:
    return Refill((), start)


def _from_token_ids(held: Sequence[int]) -> Refill:
    """Run token ids up to the last Hop that lacks what all after it have."""
    for place in reversed(range(len(held) - 1)):
        end = min(held[place + 1 :])
        if held[place] < end:
            start = min(held[: place + 1])
            return Refill((Fill(start, end, place, is_replay=False),), end)
    return _plain(min(held))


def _replayed(held: Sequence[int], kept: Sequence[int]) -> Refill:
    """Replay to every Hop that lacks something, as far as their predecessors still have it."""
    for end in sorted(set(held), reverse=True):
        lacking = [place for place, positions in enumerate(held) if positions < end]
        if all(place > 0 and kept[place - 1] >= end for place in lacking):
            return Refill(tuple(Fill(held[p], end, p, is_replay=True) for p in lacking), end)
    raise AssertionError("nobody lacks the least that is held")
