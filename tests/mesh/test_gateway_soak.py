import pytest

from bench.soak import holds, run

SECONDS = 60.0

pytestmark = pytest.mark.mesh


def test_a_minute_of_leaving_clients_and_restarting_endpoints_leaves_nothing() -> None:
    found = run(SECONDS, seed=1)
    assert holds(found), found
    assert found["requests"] > 1000
    assert found["left"] > 10
    assert found["restarts"] >= 4


@pytest.mark.parametrize("fault", ["lost", "gauges_nonzero", "rss_growth"])
def test_a_soak_does_not_hold_with_one_fault(fault: str) -> None:
    well = {"lost": 0, "gauges_nonzero": 0, "rss_growth": 0.04}
    assert holds(well)
    assert not holds({**well, fault: 1})
