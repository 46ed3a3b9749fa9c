from math import inf

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.route_field import Entrant, Field, Turn, seconds_of


def test_turns_cost_their_layers_the_ways_between_and_the_way_back() -> None:
    first = Entrant(ShardRange(0, 4), 1.0, begin_seconds=0.5)
    last = Entrant(ShardRange(2, 8), 2.0, begin_seconds=9.0)
    field = Field(
        ShardRange(0, 8), (first, last), [[inf, 7.0], [0.25, inf]], [[0.0, 7.0], [3.0, 0.0]]
    )
    assert seconds_of(field, [Turn(0, 0, 3), Turn(1, 3, 8)]) == 0.5 + 3 + 0.25 + 10 + 3
