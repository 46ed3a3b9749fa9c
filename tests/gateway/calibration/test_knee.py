"""The knee of curves that are known, and the way that a ramp takes to it."""

from collections.abc import Callable
from random import Random

import pytest

from meshnet_gateway.calibration.knee import (
    Knee,
    Level,
    NotReached,
    Unusable,
    find_knee,
    next_concurrency,
)

Curve = Callable[[int], Level]
ALONE_SECONDS = 0.5


def curve(throughput: Callable[[int], float], waits_from: int | None = None) -> Curve:
    """A closed loop: each of N requests takes N / throughput seconds."""

    def measure(concurrency: int) -> Level:
        rate = throughput(concurrency) / ALONE_SECONDS
        seconds = concurrency / rate
        waiting = None if waits_from is None else max(0, concurrency - waits_from)
        return Level(concurrency, rate, seconds, 1.1 * seconds, waiting)

    return measure


def sharp(knee: int) -> Curve:
    """Flat service times up to the knee, then in proportion."""
    return curve(lambda concurrency: min(concurrency, knee))


def contended(share: float) -> Curve:
    """Amdahl's law: each added request helps a little less."""
    return curve(lambda concurrency: concurrency / (1 + share * (concurrency - 1)))


def thrashing(knee: int) -> Curve:
    """Throughput falls again behind the knee."""
    return curve(lambda n: min(n, knee) / (1 + 0.05 * max(0, n - knee)))


def noisy(of: Curve, seed: int) -> Curve:
    draw = Random(seed)

    def measure(concurrency: int) -> Level:
        level, factor = of(concurrency), draw.uniform(0.96, 1.04)
        return Level(
            concurrency,
            level.throughput * factor,
            level.p50_seconds / factor,
            level.p95_seconds / factor,
        )

    return measure


def ramp(measure: Curve, most: int = 512) -> list[Level]:
    levels: list[Level] = []
    while (concurrency := next_concurrency(levels, most)) is not None:
        assert concurrency not in {level.concurrency for level in levels}
        levels.append(measure(concurrency))
    return levels


@pytest.mark.parametrize("shape", [sharp, thrashing])
@pytest.mark.parametrize("knee", [1, 2, 3, 4, 6, 8, 13, 32, 100])
def test_the_knee_of_a_sharp_curve_is_found(shape: Callable[[int], Curve], knee: int) -> None:
    found = find_knee(ramp(shape(knee)))

    assert isinstance(found, Knee)
    assert abs(found.concurrency - knee) <= max(0, knee // 8)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("knee", [4, 16, 48])
def test_noise_moves_a_knee_by_a_quarter_at_most(knee: int, seed: int) -> None:
    found = find_knee(ramp(noisy(sharp(knee), seed)))

    assert isinstance(found, Knee)
    assert abs(found.concurrency - knee) <= knee / 4


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2])
def test_the_knee_of_a_soft_curve_gives_most_of_the_throughput_at_a_small_price(
    share: float,
) -> None:
    measure = contended(share)
    found = find_knee(ramp(measure))

    assert isinstance(found, Knee)
    at, alone = measure(found.concurrency), measure(1)
    assert at.throughput > 0.4 * alone.throughput / share
    assert at.p95_seconds < 4 * alone.p95_seconds


@pytest.mark.parametrize("knee", [1, 5, 32])
def test_a_ramp_is_short(knee: int) -> None:
    assert len(ramp(sharp(knee))) <= 16


def test_a_ramp_doubles_from_one() -> None:
    assert [level.concurrency for level in ramp(sharp(4))][:4] == [1, 2, 4, 8]


def test_an_upstream_that_is_never_saturated_says_so() -> None:
    levels = ramp(sharp(1000), most=48)

    assert [level.concurrency for level in levels] == [1, 2, 4, 8, 16, 32, 48]
    assert find_knee(levels) == NotReached(48)


def test_the_highest_level_that_is_allowed_still_shows_a_knee_below_it() -> None:
    assert find_knee(ramp(sharp(12), most=20)) == Knee(12)


@pytest.mark.parametrize("throughput", [float, lambda concurrency: min(concurrency, 6)])
def test_a_level_at_which_requests_waited_is_past_the_knee(
    throughput: Callable[[int], float],
) -> None:
    assert find_knee(ramp(curve(throughput, waits_from=6))) == Knee(6)


@pytest.mark.parametrize("fault", [{"failures": 1}, {"p95_seconds": 3.0}, {"throughput": 0.0}])
def test_failures_and_slow_answers_are_past_the_knee(fault: dict[str, float]) -> None:
    good = {"throughput": 8.0, "p50_seconds": 0.5, "p95_seconds": 0.6}
    levels = [
        Level(4, **good),  # type: ignore[arg-type]
        Level(8, **{**good, "throughput": 16.0, **fault}),  # type: ignore[arg-type]
    ]

    assert find_knee(levels) == Knee(4)


def test_what_fails_alone_cannot_be_calibrated() -> None:
    levels = ramp(lambda n: Level(n, 0.0, 0.0, 0.0, failures=n))

    assert [level.concurrency for level in levels] == [1]
    assert find_knee(levels) == Unusable()
    assert find_knee([]) == Unusable()
