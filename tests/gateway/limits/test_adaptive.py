from itertools import pairwise
from math import log2
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_gateway.limits.adaptive import AdaptiveLimit
from meshnet_gateway.limits.pace import ChatPace, EmbeddingPace
from tests.gateway.limits.reference import Gradient2
from tests.gateway.limits.simulator import Load, Simulator

KNEES = (2, 4, 8, 32)
SERVERS = pytest.mark.parametrize("shares", [True, False], ids=["sharing", "queueing"])


class Tried:
    """Our limit at a simulated server, and what it was after each window."""

    def __init__(self, knee: int, *, shares: bool, load: Load | None = None, seed: int = 1) -> None:
        self.limit = AdaptiveLimit(1, 256)
        self.server = Simulator(self.limit, knee, load or Load(), shares=shares, seed=seed)

    def windows(self, count: int) -> list[int]:
        limits: list[int] = []
        while len(limits) < count:
            before = self.limit.facts.windows
            self.server.answer_one()
            if self.limit.facts.windows != before:
                limits.append(self.limit.limit)
        return limits


def is_about(limit: int, knee: int) -> bool:
    """A fifth off at most, or by one: above a knee of 2 or 4 nothing is nearer than one more."""
    return abs(limit - knee) <= max(0.2 * knee, 1)


@SERVERS
@pytest.mark.parametrize("knee", KNEES)
def test_the_limit_finds_the_knee_from_the_floor_and_stays_there(knee: int, shares: bool) -> None:
    tried = Tried(knee, shares=shares)
    tried.windows(3 * knee)
    stay = tried.windows(200)
    assert mean(stay) == pytest.approx(knee, rel=0.2)
    assert mean(is_about(limit, knee) for limit in stay) >= 0.85
    assert all(0.75 * knee <= limit <= max(1.25 * knee, knee + 2) for limit in stay)


@SERVERS
@pytest.mark.parametrize("knee", KNEES)
def test_the_limit_doubles_in_short_windows_until_the_endpoint_is_slow_for_the_first_time(
    knee: int, shares: bool
) -> None:
    tried = Tried(knee, shares=shares)
    answers = 0
    while tried.limit.limit < knee:
        tried.server.answer_one()
        answers += 1
    assert tried.limit.facts.windows == log2(knee)
    assert answers <= 8 * knee
    assert is_about(tried.windows(4)[-1], knee)


@SERVERS
@pytest.mark.parametrize("knee", KNEES)
def test_the_limit_finds_the_knee_of_a_noisy_server_too(knee: int, shares: bool) -> None:
    tried = Tried(knee, shares=shares, load=Load(noise=0.2))
    tried.windows(3 * knee)
    stay = tried.windows(200)
    assert mean(stay) == pytest.approx(knee, rel=0.2)
    assert mean(is_about(limit, knee) for limit in stay) >= 0.8


@SERVERS
@pytest.mark.parametrize("knee", KNEES)
def test_when_the_knee_halves_the_limit_is_there_within_ten_windows(
    knee: int, shares: bool
) -> None:
    tried = Tried(knee, shares=shares)
    tried.windows(3 * knee + 20)
    tried.server.knee = knee // 2
    assert any(limit <= 0.6 * knee for limit in tried.windows(10))


@SERVERS
@pytest.mark.parametrize("knee", KNEES)
def test_when_the_knee_doubles_the_limit_is_there_within_three_windows_for_each_of_it(
    knee: int, shares: bool
) -> None:
    tried = Tried(knee, shares=shares)
    tried.windows(3 * knee + 20)
    tried.server.knee = 2 * knee
    assert any(limit >= 0.8 * 2 * knee for limit in tried.windows(3 * knee))


class RawLatency:
    """A published algorithm over windows of ten raw latencies."""

    def __init__(self) -> None:
        self.gradient = Gradient2(limit=4.0, least=1, most=24)
        self._seconds: list[float] = []

    @property
    def limit(self) -> int:
        return int(self.gradient.limit)

    def observe(self, pace: ChatPace, in_flight: int, _now: float) -> None:
        self._seconds.append(pace.seconds)
        if len(self._seconds) == 10:
            self.gradient.window(median(self._seconds), in_flight)
            self._seconds.clear()


SHORT, LONG = (16, 16), (1024, 1024)


def test_longer_answers_at_a_load_below_the_limit_do_not_move_it() -> None:
    load = Load(in_flight=4, answer_tokens=SHORT)
    tried = Tried(8, shares=True, load=load)
    before = tried.windows(60)[-1]
    load.answer_tokens = LONG
    assert set(tried.windows(60)) == {before}


@SERVERS
def test_longer_answers_at_the_limit_leave_it_at_the_knee(shares: bool) -> None:
    load = Load(answer_tokens=SHORT)
    tried = Tried(8, shares=shares, load=load)
    tried.windows(60)
    load.answer_tokens = LONG
    after = tried.windows(60)
    assert mean(after) == pytest.approx(8, rel=0.1)
    assert mean(is_about(limit, 8) for limit in after) >= 0.8
    assert all(7 <= limit <= 11 for limit in after)


def test_longer_answers_do_move_a_limit_that_looks_at_raw_latency() -> None:
    load = Load(answer_tokens=SHORT)
    raw = RawLatency()
    server = Simulator(raw, 64, load, shares=True)
    for _ in range(1000):
        server.answer_one()
    before = raw.limit
    assert before == 24
    load.answer_tokens = LONG
    for _ in range(200):
        server.answer_one()
    assert raw.limit <= before / 2


def test_an_idle_hour_does_not_raise_the_limit() -> None:
    tried = Tried(8, shares=True)
    before = tried.windows(40)[-1]
    tried.server.now += 3600.0
    assert tried.limit.limit == before
    assert tried.windows(1)[0] <= before + 1


def test_a_load_below_the_limit_does_not_raise_it() -> None:
    tried = Tried(32, shares=True, load=Load(in_flight=3))
    assert max(tried.windows(100)) == 4


def test_a_hard_signal_takes_a_quarter_and_holds_the_limit_for_a_window() -> None:
    tried = Tried(32, shares=True)
    while tried.limit.limit < 16:
        tried.windows(1)
    tried.limit.overloaded(tried.server.now)
    assert tried.limit.limit == 12
    assert tried.windows(2) == [12, 13]


def test_a_burst_of_hard_signals_counts_once_until_answers_under_the_lower_limit_came() -> None:
    tried = Tried(32, shares=True)
    while tried.limit.limit < 16:
        tried.windows(1)
    for seconds in range(100):
        tried.limit.overloaded(tried.server.now + seconds)
    assert (tried.limit.limit, tried.limit.facts.overloads) == (12, 1)
    tried.windows(1)
    tried.limit.overloaded(tried.server.now)
    assert (tried.limit.limit, tried.limit.facts.overloads) == (9, 2)


def test_a_new_range_holds_at_once() -> None:
    limit = AdaptiveLimit(4, 8)
    limit.set_range(1, 2)
    assert limit.limit == 2
    limit.set_range(6, 9)
    assert limit.limit == 6


def test_a_ceiling_below_the_floor_and_a_floor_of_nothing_still_let_one_through() -> None:
    assert AdaptiveLimit(3, 1).limit == 3
    limit = AdaptiveLimit(0, 0)
    limit.overloaded(0.0)
    assert limit.limit == 1


EVENTS = st.tuples(st.booleans(), st.floats(0, 1e3), st.integers(0, 99), st.floats(0, 9))


@given(st.lists(EVENTS, max_size=200))
def test_the_limit_stays_in_its_range_and_falls_by_one_hard_signal_a_window(
    events: list[tuple[bool, float, int, float]],
) -> None:
    limit = AdaptiveLimit(2, 9)
    now = 0.0
    seen = [limit.facts]
    for hard, seconds, in_flight, pause in events:
        now += pause
        if hard:
            limit.overloaded(now)
        else:
            limit.observe(EmbeddingPace(7, seconds), in_flight, now)
        seen.append(limit.facts)
    assert all(2 <= facts.limit <= 9 for facts in seen)
    assert seen[-1].overloads <= seen[-1].windows + 1
    assert all(after.limit <= 2 * before.limit for before, after in pairwise(seen))
