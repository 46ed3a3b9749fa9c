"""The search for the quickest turns: one sweep up the Layers over Workers that may take part; pure.

At each Layer where a run begins or ends, everybody who holds it has one turn open: the one that it
is reached by cheapest, be it that it goes on, or that it takes over there from somebody else.

    a  [0 ======= 6)            turns of a Route:   a [0, 3)  b [3, 9)  c [9, 12)
    b      [3 ========= 9)
    c            [6 ========= 12)

That is exact but for two matters, which are looked at afterwards: the last one sends its token to
the first one, so where that costs, several first ones are tried; and a Worker may have one turn
only, so where the quickest way would give it two, it is tried with one of them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.route_field import Field, Turn, seconds_of

MOST_SWEEPS_FOR_REPEATS = 8
ROUNDING = 1e-12


class _Open(NamedTuple):
    """A turn that goes on: up to Layer n it costs `base + n * layer_seconds` from the beginning."""

    base: float
    hops: int
    entrant: int
    start: int
    first: int
    before: "_Open | None"


_Standing = tuple[float, int, int]
"""The seconds of a Route up to a Layer, its Hops, and the entrant whose turn is then; by rank."""


class _Found(NamedTuple):
    seconds: float
    hops: int
    turns: list[Turn]
    least_seconds: float
    """No way through this field costs less."""


def quickest_turns(field: Field) -> list[Turn]:
    """Find the turns, each entrant's at most one; somebody must hold each Layer."""
    found = _best_ring(field)
    if found is None:
        raise ValueError("nobody holds some of the Layers, or nobody may begin")
    repeated = _repeated(found.turns)
    return found.turns if repeated is None else _without_repeats(field, found)


def _best_ring(field: Field) -> _Found | None:
    """Find the best way of all whoever begins, then of those that each begin with some."""
    # Somebody who tells only itself is passed by in a sweep where another one is cheaper so far.
    alone = min(_alone(field), default=None)
    found = _sweep(field, None)
    if found is None or (alone is not None and alone.seconds <= found.least_seconds):
        return alone
    if alone is not None and alone.seconds < found.seconds:
        found = alone._replace(least_seconds=found.least_seconds)
    if found.seconds <= found.least_seconds * (1 + field.good_enough) + ROUNDING:
        return found
    others = [_sweep(field, first_ones) for first_ones in field.first_ones]
    return min([found, *(other for other in others if other is not None)])


def _alone(field: Field) -> Iterator[_Found]:
    """Go through the ways with one turn only."""
    layers = field.layers
    for number in _first_ones(field):
        entrant = field.entrants[number]
        if entrant.run.end >= layers.end:
            seconds = entrant.begin_seconds + len(layers) * entrant.layer_seconds
            seconds += field.end_seconds[number][number]
            yield _Found(seconds, 1, [Turn(number, layers.start, layers.end)], seconds)


def _without_repeats(field: Field, found: _Found) -> list[Turn]:
    """Try those that got two turns with the earlier Layers only, and with the later ones only.

    Who has two can always run what lies between them itself, so there is one way at least.
    """
    best: tuple[float, int, list[Turn]] | None = None
    waiting = [(field, found)]
    for _ in range(MOST_SWEEPS_FOR_REPEATS):
        if not waiting:
            break
        tried, way = waiting.pop()
        repeated = _repeated(way.turns)
        turns = _joined(way.turns)
        known = (seconds_of(field, turns), len(turns), turns)
        best = known if best is None else min(best, known)
        if repeated is None:
            continue
        for part in _parts(tried, *repeated):
            if (other := _best_ring(part)) is not None and other.seconds < best[0]:
                waiting.append((part, other))
    assert best is not None
    return best[2]


def _parts(field: Field, earlier: Turn, later: Turn) -> Iterator[Field]:
    number = earlier.entrant
    entrant = field.entrants[number]
    for run in (
        ShardRange(entrant.run.start, earlier.end),
        ShardRange(later.start, entrant.run.end),
    ):
        changed = replace(entrant, run=run)
        yield replace(
            field, entrants=(*field.entrants[:number], changed, *field.entrants[number + 1 :])
        )


def _sweep(field: Field, first_ones: frozenset[int] | None) -> _Found | None:
    """Go up the Layers once; None where there is no way."""
    starting, edges = _edges(field, first_ones)
    least = _least_to_each(field)
    costs = [entrant.layer_seconds for entrant in field.entrants]
    now_open: dict[int, _Open] = {}
    ranked: list[_Standing] = []
    for layer in edges:
        # A run that ends here can hand over here, and is gone afterwards.
        ranked = sorted(
            [(turn.base + layer * costs[n], turn.hops, n) for n, turn in now_open.items()]
        )
        if layer == field.layers.end:
            break
        before = now_open
        now_open = {n: one for n, one in before.items() if field.entrants[n].run.end > layer}
        for seconds, _, number in ranked:
            # Most of those that are quick so far just go on.
            if seconds > ranked[0][0] + least[number] and number in now_open:
                taken = _taken(field, before, ranked, (number, layer, least[number]))
                now_open[number] = taken or before[number]
        for number in starting[layer]:
            begun = (
                _begun(field, number)
                if layer == field.layers.start
                else _taken(field, before, ranked, (number, layer, least[number]))
            )
            if begun is not None:
                now_open[number] = begun
    return _last(field, now_open, ranked)


def _least_to_each(field: Field) -> list[float]:
    """Find for each what it costs at least to take over from another one."""
    count = len(field.entrants)
    if count < 2:
        return [0.0] * count
    # Nobody takes over from itself, though that were cheapest.
    rows = field.take_over_seconds
    columns = (sorted(column)[:2] for column in zip(*rows, strict=True))
    return [
        two if rows[number][number] == one else one for number, (one, two) in enumerate(columns)
    ]


def _edges(
    field: Field, first_ones: frozenset[int] | None
) -> tuple[dict[int, list[int]], list[int]]:
    """List who may take over at which Layer first, and all Layers where anything changes."""
    start, end = field.layers.start, field.layers.end
    starting: dict[int, list[int]] = defaultdict(list)
    edges = {start, end}
    for number, entrant in enumerate(field.entrants):
        begins = entrant.may_begin and (first_ones is None or number in first_ones)
        entry = max(entrant.run.start, start if begins else start + 1)
        if entry < entrant.run.end:
            starting[entry].append(number)
            edges |= {entry, entrant.run.end}
    return starting, sorted(edges)


def _begun(field: Field, number: int) -> _Open:
    entrant = field.entrants[number]
    start = field.layers.start
    base = entrant.begin_seconds - start * entrant.layer_seconds
    return _Open(base, 1, number, start, number, None)


def _taken(
    field: Field,
    before: dict[int, _Open],
    ranked: list[_Standing],
    here: tuple[int, int, float],
) -> _Open | None:
    """Find from whom it takes over cheapest at this Layer; None if it better goes on itself."""
    number, layer, least = here
    layer_seconds = field.entrants[number].layer_seconds
    own = before.get(number)
    best = (own.base + layer * layer_seconds, own.hops) if own else (float("inf"), 0)
    taken = None
    for seconds, hops, other in ranked:
        if seconds + least > best[0]:
            break
        if other != number:
            reached = (seconds + field.take_over_seconds[other][number], hops + 1)
            if reached < best:
                best, taken = reached, other
    if taken is None:
        return None
    from_whom = before[taken]
    base = best[0] - layer * layer_seconds
    return _Open(base, best[1], number, layer, from_whom.first, from_whom)


def _last(field: Field, now_open: dict[int, _Open], ranked: list[_Standing]) -> _Found | None:
    """Choose among all that have run the last Layer."""
    best: tuple[float, int, int] | None = None
    least = float("inf")
    first_ones = _first_ones(field)
    for seconds, hops, number in ranked:
        ends = field.end_seconds[number]
        known = (seconds + ends[now_open[number].first], hops, number)
        best = known if best is None else min(best, known)
        told = (ends[first] for first in first_ones if first != number)
        least = min(least, seconds + (ends[number] if hops == 1 else min(told, default=0.0)))
    if best is None:
        return None
    return _Found(best[0], best[1], _walked_back(now_open[best[2]], field.layers.end), least)


def _first_ones(field: Field) -> list[int]:
    start = field.layers.start
    return [n for n, one in enumerate(field.entrants) if one.may_begin and one.run.start == start]


def _walked_back(turn: _Open, end: int) -> list[Turn]:
    turns = [Turn(turn.entrant, turn.start, end)]
    while turn.before is not None:
        turns.append(Turn(turn.before.entrant, turn.before.start, turn.start))
        turn = turn.before
    return turns[::-1]


def _repeated(turns: Sequence[Turn]) -> tuple[Turn, Turn] | None:
    """Find two turns of one entrant."""
    seen: dict[int, Turn] = {}
    for turn in turns:
        if turn.entrant in seen:
            return seen[turn.entrant], turn
        seen[turn.entrant] = turn
    return None


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    """Give an entrant that got two turns all that lies between them."""
    joined: list[Turn] = []
    for turn in turns:
        earlier = next((i for i, one in enumerate(joined) if one.entrant == turn.entrant), None)
        if earlier is None:
            joined.append(turn)
        else:
            joined[earlier:] = [joined[earlier]._replace(end=turn.end)]
    return joined
