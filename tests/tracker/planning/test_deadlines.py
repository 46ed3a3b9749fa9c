from meshnet_tracker.planning.deadlines import (
    BASE_SECONDS,
    MOST_SECONDS,
    SLACK,
    deadline_seconds,
    load_seconds,
)


def test_a_deadline_is_twice_what_the_measured_line_takes_and_a_base() -> None:
    assert deadline_seconds(10**9, 10e6, usual=600.0) == BASE_SECONDS + SLACK * 100.0


def test_a_line_that_was_never_measured_gets_the_usual_deadline() -> None:
    assert load_seconds(10**9, 0.0) is None
    assert deadline_seconds(10**9, 0.0, usual=600.0) == 600.0


def test_no_deadline_is_longer_than_a_day() -> None:
    assert deadline_seconds(10**15, 1.0, usual=600.0) == MOST_SECONDS
