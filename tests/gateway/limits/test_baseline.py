import pytest

from meshnet_gateway.limits.baseline import Baseline


def test_it_falls_at_once_and_rises_by_a_hundredth_a_window() -> None:
    baseline = Baseline()
    baseline.add(2.0)
    baseline.add(1.0)
    assert baseline.seconds == 1.0
    for _ in range(8):
        baseline.add(3.0)
    assert baseline.seconds == 1.0
    baseline.add(3.0)
    assert baseline.seconds == pytest.approx(1.01)


def test_before_the_first_window_there_is_none() -> None:
    assert Baseline().seconds is None


def test_one_quick_window_in_ten_keeps_it_low() -> None:
    baseline = Baseline()
    for window in range(200):
        baseline.add(1.0 if window % 10 == 0 else 2.0)
    assert baseline.seconds == 1.0
