import pytest

from tests.gateway.limits.reference import Aimd, Gradient2, Vegas


def test_aimd_gives_its_published_figures() -> None:
    assert Aimd().sample(0.01, in_flight=10, dropped=False) == 21
    assert Aimd(limit=30).sample(0.01, in_flight=10, dropped=True) == 27
    assert Aimd(limit=21, most=21).sample(0.01, in_flight=20, dropped=False) == 21
    assert Aimd(limit=30).sample(5.1, in_flight=30, dropped=False) == 27


@pytest.mark.parametrize(
    ("seconds", "in_flight", "limit"), [((0.01, 0.01), 10, 16), ((0.01, 0.014), 14, 10)]
)
def test_vegas_gives_its_published_figures(
    seconds: tuple[float, float], in_flight: int, limit: int
) -> None:
    vegas = Vegas(limit=10, least_seconds=seconds[0])
    assert vegas.sample(seconds[1], in_flight, dropped=False) == limit


def test_vegas_falls_when_many_wait_and_rises_by_more_the_higher_it_is() -> None:
    vegas = Vegas(limit=10, least_seconds=0.01)
    assert vegas.sample(0.05, in_flight=14, dropped=False) == 9
    high = Vegas(limit=10_000, most=20_000, least_seconds=0.01)
    assert high.sample(0.01, in_flight=6000, dropped=False) == 10_024


def test_gradient2_leaves_an_idle_limit_alone_and_halves_at_most() -> None:
    gradient = Gradient2(limit=40.0)
    assert gradient.window(0.01, in_flight=19) == 40
    assert gradient.window(0.01, in_flight=20) == int(0.8 * 40 + 0.2 * 44)
    slow = Gradient2(limit=40.0, long_seconds=0.01, windows=1000)
    assert slow.window(10.0, in_flight=40) == int(0.8 * 40 + 0.2 * (40 * 0.5 + 4))
