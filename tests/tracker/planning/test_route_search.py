from collections.abc import Iterator
from itertools import pairwise
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.route_field import Entrant, Field, Turn, seconds_of
from meshnet_tracker.planning.route_search import quickest_turns

LAYERS = 6
MOST_LAYERS = 5


def field(
    *runs: tuple[int, int, float], take_over: float = 0.0, end: float = 0.0, layers: int = LAYERS
) -> Field:
    """Build a field of runs with their seconds for each Layer, and equal ways between all."""
    count = range(len(runs))
    return Field(
        layers=ShardRange(0, layers),
        entrants=tuple(Entrant(ShardRange(a, b), seconds) for a, b, seconds in runs),
        take_over_seconds=[[take_over if one != two else inf for two in count] for one in count],
        end_seconds=[[end if one != two else 0.0 for two in count] for one in count],
        first_ones=tuple(frozenset({number}) for number in count),
    )


def test_one_takes_over_from_the_other_where_that_is_quickest() -> None:
    slow_then_quick = field((0, 6, 2.0), (2, 6, 1.0), take_over=1.0)
    assert quickest_turns(slow_then_quick) == [Turn(0, 0, 2), Turn(1, 2, 6)]


def test_a_take_over_that_costs_more_than_it_gains_is_not_made() -> None:
    assert quickest_turns(field((0, 6, 2.0), (2, 6, 1.0), take_over=5.0)) == [Turn(0, 0, 6)]


def test_the_way_back_to_the_first_one_counts() -> None:
    both = field((0, 6, 1.0), (0, 3, 0.5), (3, 6, 0.5), end=4.0)
    assert quickest_turns(both) == [Turn(0, 0, 6)]


def test_who_begins_is_chosen_with_the_way_back_in_mind() -> None:
    near, far = 0.1, 5.0
    both = Field(
        layers=ShardRange(0, 6),
        entrants=(
            Entrant(ShardRange(0, 3), 0.9),
            Entrant(ShardRange(0, 3), 1.0),
            Entrant(ShardRange(3, 6), 1.0),
        ),
        take_over_seconds=[[inf, 0.5, 0.5], [0.5, inf, 0.5], [0.5, 0.5, inf]],
        end_seconds=[[0.0] * 3, [0.0] * 3, [far, near, 0.0]],
        first_ones=(frozenset({0}), frozenset({1})),
    )
    assert quickest_turns(both) == [Turn(1, 0, 3), Turn(2, 3, 6)]


def test_who_may_not_begin_takes_over_after_the_first_layer() -> None:
    slow, quick = Entrant(ShardRange(0, 6), 9.0), Entrant(ShardRange(0, 6), 1.0, may_begin=False)
    at_once = [[inf, 0.0], [0.0, inf]]
    both = Field(ShardRange(0, 6), (slow, quick), at_once, [[0.0] * 2] * 2)
    assert quickest_turns(both) == [Turn(0, 0, 1), Turn(1, 1, 6)]


def test_nobody_has_two_turns_though_that_were_quickest() -> None:
    between = field((0, 6, 2.0), (2, 4, 0.1))
    assert quickest_turns(between) == [Turn(0, 0, 6)]
    helped = field((0, 6, 2.0), (2, 4, 0.1), (4, 6, 2.5))
    assert quickest_turns(helped) == [Turn(0, 0, 2), Turn(1, 2, 4), Turn(2, 4, 6)]


@pytest.mark.parametrize("runs", [((0, 5, 1.0),), ((0, 2, 1.0), (3, 6, 1.0)), ((1, 6, 1.0),)])
def test_a_gap_is_an_error(runs: tuple[tuple[int, int, float], ...]) -> None:
    with pytest.raises(ValueError, match="nobody holds"):
        quickest_turns(field(*runs))


def drawn_field(seed: int) -> Field:
    """Draw a small field; a seed is far quicker to draw than all of its figures one by one."""
    random = Random(seed)
    layers, count = random.randint(1, MOST_LAYERS), random.randint(1, 4)

    def ways() -> list[list[float]]:
        return [random.choices((0.0, 0.125, 1.0, 4.0), k=count) for _ in range(count)]

    entrants = []
    for _ in range(count):
        start = random.randrange(layers)
        run = ShardRange(start, random.randint(start + 1, layers))
        speed, begin = random.choice((0.25, 0.5, 2.0)), random.choice((0.0, 1.0))
        entrants.append(Entrant(run, speed, begin, random.random() < 0.7))
    ends, take_overs = ways(), ways()
    for number in range(count):
        ends[number][number], take_overs[number][number] = 0.0, inf
    first_ones = tuple(frozenset({number}) for number in range(count))
    return Field(ShardRange(0, layers), tuple(entrants), take_overs, ends, first_ones)


def ways_of(field: Field, turns: tuple[Turn, ...] = ()) -> Iterator[tuple[Turn, ...]]:
    """Go through all ways in which nobody has two turns."""
    layer = turns[-1].end if turns else 0
    if layer == field.layers.end:
        yield turns
        return
    used = {turn.entrant for turn in turns}
    for number, entrant in enumerate(field.entrants):
        if number not in used and (turns or entrant.may_begin) and entrant.run.start <= layer:
            for end in range(layer + 1, entrant.run.end + 1):
                yield from ways_of(field, (*turns, Turn(number, layer, end)))


@settings(deadline=None, max_examples=2000)
@given(st.integers(0, 2**32 - 1))
def test_the_turns_are_whole_and_cost_no_more_than_any_other_way(seed: int) -> None:
    drawn = drawn_field(seed)
    costs = [seconds_of(drawn, way) for way in ways_of(drawn)]
    if not costs:
        with pytest.raises(ValueError, match="nobody holds"):
            quickest_turns(drawn)
        return
    turns = quickest_turns(drawn)
    assert (turns[0].start, turns[-1].end) == (0, drawn.layers.end)
    assert all(one.end == two.start < two.end for one, two in pairwise(turns))
    assert len({turn.entrant for turn in turns}) == len(turns)
    assert drawn.entrants[turns[0].entrant].may_begin
    assert all(
        drawn.entrants[number].run.contains(ShardRange(start, end)) for number, start, end in turns
    )
    cost = seconds_of(drawn, turns)
    if not _is_nested(drawn):
        assert cost == pytest.approx(min(costs))
    # Where one holds all that another one holds, some ways are not tried.
    assert cost <= 2 * min(costs) + 4.0


def _is_nested(drawn: Field) -> bool:
    runs = list(enumerate(entrant.run for entrant in drawn.entrants))
    return any(a.contains(b) for i, a in runs for j, b in runs if i != j)
