from meshnet_tracker.store.cooling import MAX_COOLING_SECONDS, cooling_seconds


def test_every_failure_in_a_row_doubles_the_wait() -> None:
    assert [cooling_seconds(failures) for failures in (1, 2, 3, 4)] == [10, 20, 40, 80]


def test_the_wait_has_an_end() -> None:
    assert cooling_seconds(10_000) == MAX_COOLING_SECONDS
