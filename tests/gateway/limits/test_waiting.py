from hypothesis import given
from hypothesis import strategies as st

from meshnet_gateway.limits.waiting import Place, WaitingLines


def test_positions_count_who_goes_before_and_follow_those_who_leave() -> None:
    lines = WaitingLines()
    places = [lines.join("tiny", 1) for _ in range(4)]
    assert [lines.ahead(place) for place in places] == [0, 1, 2, 3]
    lines.leave(places[1])
    assert [lines.ahead(place) for place in (places[0], *places[2:])] == [0, 1, 2]


def test_a_better_priority_goes_before_all_that_came_earlier() -> None:
    lines = WaitingLines()
    low, high = lines.join("tiny", 5), lines.join("tiny", 1)
    assert (lines.ahead(high), lines.ahead(low)) == (0, 1)
    assert lines.next_to_go(lambda _model: True) == high


def test_a_model_that_may_not_go_holds_up_only_its_own_line() -> None:
    lines = WaitingLines()
    lines.join("busy", 1)
    free = lines.join("free", 1)
    assert lines.next_to_go(lambda model: model == "free") == free
    assert lines.next_to_go(lambda _model: False) is None


def test_among_models_of_one_priority_the_longest_waiting_goes_first() -> None:
    lines = WaitingLines()
    first = lines.join("a", 1)
    lines.join("b", 1)
    lines.join("a", 1)
    assert lines.next_to_go(lambda _model: True) == first


def test_leaving_twice_is_as_good_as_once_and_leaves_nothing_behind() -> None:
    lines = WaitingLines()
    place = lines.join("tiny", 1)
    lines.leave(place)
    lines.leave(place)
    assert (lines.total, lines.waiting("tiny")) == (0, 0)
    assert lines.next_to_go(lambda _model: True) is None


STEPS = st.lists(
    st.tuples(st.sampled_from(("join", "leave", "go")), st.integers(0, 2), st.integers(0, 30)),
    max_size=60,
)


@given(STEPS)
def test_each_line_is_first_in_first_out_whoever_leaves(steps: list[tuple[str, int, int]]) -> None:
    lines = WaitingLines()
    kept: list[Place] = []
    for action, which, index in steps:
        if action == "join":
            kept.append(lines.join(f"model{which}", index % 2))
        elif action == "leave" and kept:
            lines.leave(kept.pop(index % len(kept)))
        elif action == "go":
            model = f"model{which}"
            expected = min(
                (place for place in kept if place.model == model),
                key=lambda place: (place.priority, place.number),
                default=None,
            )
            gone = lines.next_to_go(model.__eq__)
            assert gone == expected
            if gone is not None:
                lines.leave(gone)
                kept.remove(gone)
    for place in kept:
        before = [
            other
            for other in kept
            if other.model == place.model
            and (other.priority, other.number) < (place.priority, place.number)
        ]
        assert lines.ahead(place) == len(before)
    assert lines.total == len(kept)
