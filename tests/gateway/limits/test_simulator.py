import pytest

from meshnet_gateway.limits.pace import ChatPace
from tests.gateway.limits.simulator import Load, Simulator


class Fixed:
    """A limit that stays, and keeps what it saw."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.seen: list[tuple[ChatPace, int]] = []

    def observe(self, pace: ChatPace, in_flight: int, _now: float) -> None:
        self.seen.append((pace, in_flight))


STEADY = Load(prompt_tokens=(100, 100), answer_tokens=(51, 51), noise=0.0)


def seconds_and_rate(limit: int, *, shares: bool) -> tuple[float, float]:
    fixed = Fixed(limit)
    simulator = Simulator(fixed, 4, STEADY, shares=shares)
    for _ in range(400):
        simulator.answer_one()
    assert max(in_flight for _, in_flight in fixed.seen) == limit
    return fixed.seen[-1][0].seconds, 400 / simulator.now


@pytest.mark.parametrize("shares", [True, False])
def test_time_is_flat_up_to_the_knee_and_proportional_beyond_it(shares: bool) -> None:
    assert seconds_and_rate(1, shares=shares)[0] == pytest.approx(0.6)
    assert seconds_and_rate(4, shares=shares)[0] == pytest.approx(0.6)
    assert seconds_and_rate(12, shares=shares)[0] == pytest.approx(1.8, rel=0.05)


@pytest.mark.parametrize("shares", [True, False])
def test_no_more_is_answered_beyond_the_knee(shares: bool) -> None:
    assert seconds_and_rate(2, shares=shares)[1] == pytest.approx(2 / 0.6, rel=0.05)
    assert seconds_and_rate(16, shares=shares)[1] == pytest.approx(4 / 0.6, rel=0.05)
