import asyncio

import pytest

from meshnet_common.edge.clock import Clock, ManualClock, SteadyClock, SystemClock, loop_time


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(100.0)
    assert clock.now() == 100.0

    clock.advance(2.5)
    assert clock.now() == 102.5


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock(2e9)])
def test_time_is_seconds_since_the_epoch(clock: Clock) -> None:
    assert 1.6e9 < clock.now() < 1e10


def test_a_steady_clock_never_goes_back() -> None:
    clock = SteadyClock()
    moments = [clock.now() for _ in range(100)]
    assert moments == sorted(moments)


async def test_the_loops_time_is_what_its_timers_go_by() -> None:
    before = loop_time()
    assert before <= asyncio.get_running_loop().time() <= loop_time()
