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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple, Self

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.route_field import Field, Turn, seconds_of

MOST_SWEEPS_FOR_REPEATS = 8
ROUNDING = 1e-12


_Open = tuple[float, int, int, int, int, "_Open | None"]
"""A turn that goes on: its base, its Hops, its entrant, its start, who is first, the turn before.

Up to Layer n it costs base + n * layer_seconds from the beginning. Plain tuples, since most of a
search is to make and read these.
"""

_Standing = tuple[float, int, int]
"""The seconds of a Route up to a Layer, its Hops, and the entrant whose turn is then; by rank.

Of an entrant that has had no turn yet, infinitely many seconds and no Hops.
"""


class _Figures(NamedTuple):
    """What a sweep looks up for each entrant by number."""

    into: Sequence[Sequence[float]]
    least: Sequence[float]
    """What it costs at least to take over."""
    ends: Sequence[int]
    layer_seconds: Sequence[float]

    @classmethod
    def of(cls, field: Field) -> Self:
        into, entrants = field.take_over_seconds, field.entrants
        ends = [one.run.end for one in entrants]
        return cls(into, list(map(min, into)), ends, [one.layer_seconds for one in entrants])


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
        changed = entrant._replace(run=run)
        yield replace(
            field, entrants=(*field.entrants[:number], changed, *field.entrants[number + 1 :])
        )


def _sweep(field: Field, first_ones: frozenset[int] | None) -> _Found | None:
    """Go up the Layers once; None where there is no way."""
    now_open, starting, edges = _opening(field, first_ones)
    figures = _Figures.of(field)
    ends, layer_seconds = figures.ends, figures.layer_seconds
    for layer in edges:
        # A run that ends here can hand over here, and is gone afterwards.
        ranked = [(one[0] + layer * layer_seconds[n], one[1], n) for n, one in now_open.items()]
        ranked.sort()
        if layer == field.layers.end or not ranked:
            return _last(field, now_open, ranked)
        opened = _taken_over(layer, ranked, starting.get(layer, []), now_open, figures)
        for _, _, number in ranked:
            if ends[number] <= layer:
                del now_open[number]
        for one in opened:
            now_open[one[2]] = one
    return None


def _opening(
    field: Field, first_ones: frozenset[int] | None
) -> tuple[dict[int, _Open], dict[int, list[_Standing]], list[int]]:
    """Open those that begin; list who may take over at which Layer first, and where any may."""
    start = field.layers.start
    now_open: dict[int, _Open] = {}
    starting: dict[int, list[_Standing]] = {}
    edges = {field.layers.end}
    for number, (run, layer_seconds, begin_seconds, may_begin) in enumerate(field.entrants):
        entry, end = run.start, run.end
        if entry <= start:
            if may_begin and (first_ones is None or number in first_ones):
                base = begin_seconds - start * layer_seconds
                now_open[number] = (base, 1, number, start, number, None)
                edges.add(end)
                continue
            entry = start + 1
        if entry < end:
            starting.setdefault(entry, []).append((inf, 0, number))
            edges.add(entry)
            edges.add(end)
    return now_open, starting, sorted(edges)


def _taken_over(
    layer: int,
    ranked: list[_Standing],
    starting: list[_Standing],
    now_open: Mapping[int, _Open],
    figures: _Figures,
) -> list[_Open]:
    """Open a turn for each who takes over at this Layer, from whom that is cheapest."""
    into, least, ends, layer_seconds = figures
    quickest = ranked[0][0]
    opened: list[_Open] = []
    # Most of those that are quick so far just go on.
    takers = [one for one in ranked if one[0] > quickest + least[one[2]]]
    for own_seconds, own_hops, number in takers + starting:
        if ends[number] <= layer:
            continue
        best, best_hops, before = own_seconds, own_hops, None
        from_each, at_least = into[number], least[number]
        for seconds, hops, other in ranked:
            if seconds + at_least > best:
                break
            reached = seconds + from_each[other]
            if reached < best or (reached == best and hops + 1 < best_hops):
                best, best_hops, before = reached, hops + 1, now_open[other]
        if before is not None:
            base = best - layer * layer_seconds[number]
            opened.append((base, best_hops, number, layer, before[4], before))
    return opened


def _last(field: Field, now_open: dict[int, _Open], ranked: list[_Standing]) -> _Found | None:
    """Choose among all that have run the last Layer."""
    best: tuple[float, int, int] | None = None
    least = inf
    first_ones = _first_ones(field)
    for seconds, hops, number in ranked:
        if best is not None and seconds > max(best[0], least):
            # Whoever comes now is dearer before the first one is told.
            break
        ends = field.end_seconds[number]
        known = (seconds + ends[now_open[number][4]], hops, number)
        best = known if best is None else min(best, known)
        told = (ends[first] for first in first_ones if first != number)
        least = min(least, seconds + (ends[number] if hops == 1 else min(told, default=0.0)))
    if best is None:
        return None
    return _Found(best[0], best[1], _walked_back(now_open[best[2]], field.layers.end), least)


def _first_ones(field: Field) -> list[int]:
    start = field.layers.start
    return [n for n, one in enumerate(field.entrants) if one.may_begin and one.run.start == start]


def _walked_back(last: _Open, end: int) -> list[Turn]:
    turns = []
    turn: _Open | None = last
    while turn is not None:
        _, _, entrant, start, _, before = turn
        turns.append(Turn(entrant, start, end))
        end, turn = start, before
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
