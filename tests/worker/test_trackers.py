import pytest

from meshnet_worker.trackers import FIRST_PATIENCE_SECONDS, Trackers

A, B, C = "http://a", "http://b", "http://c"


def order(trackers: Trackers) -> list[str]:
    return [url for url, _ in trackers.round()]


def test_the_first_one_is_called_first() -> None:
    assert Trackers(A, B).present == A
    assert order(Trackers(A, B, C)) == [A, B, C]


def test_a_round_begins_with_the_one_that_answered_last() -> None:
    trackers = Trackers(A, B, C)
    assert trackers.stay_with(B)
    assert trackers.present == B
    assert order(trackers) == [B, C, A]


def test_staying_is_no_change() -> None:
    trackers = Trackers(A, B)
    assert not trackers.stay_with(A)
    assert trackers.present == A


def test_one_is_listed_once_however_often_it_is_named() -> None:
    assert order(Trackers(f"{A}/", B, A, f"{B}/")) == [A, B]


def test_only_the_last_of_a_round_has_all_the_time_that_a_call_has() -> None:
    assert Trackers(A).round() == ((A, None),)
    assert Trackers(A, B).round() == ((A, FIRST_PATIENCE_SECONDS), (B, None))


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize(("heartbeat", "lost_after"), [(3.0, 12.0), (1.0, 4.0), (10.0, 12.0)])
def test_however_many_are_silent_the_last_is_called_before_the_worker_is_lost(
    count: int, heartbeat: float, lost_after: float
) -> None:
    trackers = Trackers(*(f"http://{number}" for number in range(count)))
    trackers.learn_terms(heartbeat, lost_after)
    *others, (_, last) = trackers.round()
    waited = sum(patience for _, patience in others if patience is not None)
    assert last is None
    assert len(others) == count - 1
    assert 0 < heartbeat + waited < heartbeat + (lost_after - heartbeat) / 2
