from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.first_parts import first_parts
from meshnet_tracker.planning.orders import Placement


def placement(**ranges: tuple[int, int]) -> Placement:
    return {WorkerId(name): ShardRange(*each) for name, each in ranges.items()}


def parts(placed: Placement, layers: int, **rates: float) -> Placement:
    by_name = {WorkerId(name): rate for name, rate in rates.items()}
    return first_parts(placed, by_name, layers)[0]


def test_two_copies_are_loaded_as_one_first() -> None:
    placed = placement(a=(0, 8), b=(0, 8))
    assert parts(placed, 8, a=1.0, b=1.0) == placement(a=(4, 8), b=(0, 4))


def test_the_faster_line_loads_more() -> None:
    found = parts(placement(a=(0, 8), b=(0, 8)), 8, a=3.0, b=1.0)
    assert sorted(map(len, found.values())) == [2, 6]
    assert len(found[WorkerId("a")]) == 6


def test_a_single_copy_is_loaded_as_it_is() -> None:
    placed = placement(a=(0, 5), b=(5, 8))
    assert parts(placed, 8, a=1.0, b=9.0) == placed


def test_who_is_not_waited_for_loads_all_of_its_part() -> None:
    placed = placement(slow=(0, 4), a=(0, 4), b=(4, 8))
    assert parts(placed, 8, slow=0.01, a=1.0, b=1.0)[WorkerId("slow")] == ShardRange(0, 4)


def test_the_seconds_are_those_after_which_all_layers_are_there() -> None:
    placed = placement(a=(0, 8), b=(0, 8))
    _, seconds = first_parts(placed, {WorkerId("a"): 1.0, WorkerId("b"): 1.0}, 8)
    assert abs(seconds - 4.0) < 0.01
