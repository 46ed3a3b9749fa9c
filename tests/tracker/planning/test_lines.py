from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.ids import WorkerId
from meshnet_tracker.planning.lines import NEAR, NEAR_SECONDS, Line, shares


def line(name: str, layers: int, speed: float, delay: float = 0.0) -> Line:
    return Line(WorkerId(name), layers, speed, delay)


def test_each_line_loads_as_much_as_its_speed_allows() -> None:
    taken = shares([line("fast", 200, 3.0), line("slow", 200, 1.0)], 160)
    assert taken == {"fast": 120, "slow": 40}


def test_a_worker_loads_no_more_than_it_has_room_for() -> None:
    assert shares([line("fast", 4, 10.0), line("slow", 20, 1.0)], 10) == {"fast": 4, "slow": 6}


def test_a_line_that_makes_no_difference_is_left_out() -> None:
    assert shares([line("fast", 20, 10.0), line("slow", 20, 0.01)], 10) == {"fast": 10}


def test_who_loads_something_else_first_takes_less() -> None:
    taken = shares([line("busy", 20, 1.0, delay=10.0), line("idle", 20, 1.0)], 20)
    assert taken[WorkerId("idle")] > taken[WorkerId("busy")] > 0


def test_where_there_is_too_little_room_nothing_is_shared_out() -> None:
    assert shares([line("a", 3, 1.0), line("b", 3, 0.0)], 4) == {}


LINES = st.lists(
    st.tuples(st.integers(0, 9), st.floats(0.1, 9.0), st.floats(0.0, 9.0)), min_size=1, max_size=6
)


@given(LINES, st.integers(1, 30))
def test_all_layers_are_shared_out_and_about_as_soon_as_can_be(
    drawn: list[tuple[int, float, float]], layers: int
) -> None:
    lines = [line(f"w{index}", *each) for index, each in enumerate(drawn)]
    taken = shares(lines, layers)
    if sum(each.layers for each in lines) < layers:
        assert not taken
        return
    assert sum(taken.values()) == layers
    by_name = {each.worker_id: each for each in lines}
    seconds = max(
        by_name[WorkerId(name)].delay_seconds + count / by_name[WorkerId(name)].layers_per_second
        for name, count in taken.items()
    )
    earlier = (seconds - NEAR_SECONDS) / NEAR - 1e-6
    assert sum(each.loaded(earlier - 1e-3) for each in lines) < layers or earlier <= 0
