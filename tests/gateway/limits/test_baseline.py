import pytest

from meshnet_gateway.limits.baseline import Baseline


def test_it_rises_by_a_hundredth_a_window_and_falls_at_once() -> None:
    baseline = Baseline(1.0)
    for _ in range(3):
        baseline.add(3.0)
    assert baseline.seconds == pytest.approx(1.01**3)
    for _ in range(5):
        baseline.add(0.5)
    assert baseline.seconds == 0.5


def test_some_slow_windows_among_quick_ones_leave_it_where_it_is() -> None:
    baseline = Baseline(1.0)
    for window in range(200):
        baseline.add(1.0 if window % 5 else 2.0)
    assert baseline.seconds == 1.0


def test_a_slow_first_window_is_forgotten() -> None:
    baseline = Baseline(9.0)
    for _ in range(3):
        baseline.add(1.0)
    assert baseline.seconds == 1.0
