from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from meshnet_gateway.limits.breaker import (
    Attempt,
    BreakerPolicy,
    BreakerState,
    CircuitBreaker,
    Closed,
    HalfOpen,
    Open,
)

POLICY = BreakerPolicy(failures_in_a_row=2, successes_to_close=2, jitter=0.5)


def state_of(one: CircuitBreaker) -> BreakerState:
    """The state now: a type checker would take a second look at the attribute for the first."""
    return one.state


def breaker(policy: BreakerPolicy = POLICY, draw: float = 0.0) -> CircuitBreaker:
    return CircuitBreaker(policy, lambda: draw)


def fail(one: CircuitBreaker, now: float, times: int = 1, others: int = 0) -> None:
    for _ in range(times):
        one.failed(one.begin(now), now, others)


def succeed(one: CircuitBreaker, now: float, times: int = 1) -> None:
    for _ in range(times):
        one.succeeded(one.begin(now), now)


def test_failures_in_a_row_open_it_and_a_success_between_starts_the_row_anew() -> None:
    one = breaker()
    fail(one, 0)
    succeed(one, 0)
    fail(one, 0)
    assert one.admits(0)
    fail(one, 0)
    assert one.state == Open(until=5.0, openings=1)
    assert not one.admits(4.9)


def test_the_first_failure_is_enough_where_the_policy_says_so() -> None:
    one = breaker(BreakerPolicy(failures_in_a_row=1))
    fail(one, 0)
    assert not one.admits(0)


def test_after_the_cool_down_one_probe_goes_at_a_time_and_successes_close_it() -> None:
    one = breaker()
    fail(one, 0, times=2)
    first = one.begin(5.0)
    assert not one.admits(5.0)
    one.succeeded(first, 6.0)
    assert state_of(one) == HalfOpen(openings=1, successes=1)
    succeed(one, 6.0)
    assert state_of(one) == Closed()


def test_a_failed_probe_doubles_the_cool_down_up_to_its_cap() -> None:
    one = breaker()
    fail(one, 0, times=2)
    lengths = []
    for _ in range(6):
        assert isinstance(one.state, Open)
        now = one.state.until
        fail(one, now)
        lengths.append(one.state.until - now)
    assert lengths == [10.0, 20.0, 40.0, 60.0, 60.0, 60.0]


def test_an_endpoint_gone_for_days_still_cools_down_for_the_cap() -> None:
    one = breaker()
    fail(one, 0, times=2)
    now = 0.0
    for _ in range(2000):
        assert isinstance(one.state, Open)
        now = one.state.until
        fail(one, now)
    assert one.state == Open(now + 60.0, openings=2001)


def test_jitter_lengthens_a_cool_down_by_its_share() -> None:
    one = breaker(draw=0.5)
    fail(one, 0, times=2)
    assert one.state == Open(until=5.0 * 1.25, openings=1)


def test_a_cancelled_probe_counts_as_neither_and_another_one_goes() -> None:
    one = breaker()
    fail(one, 0, times=2)
    one.cancelled(one.begin(5.0))
    assert state_of(one) == HalfOpen(openings=1)
    assert one.admits(5.0)


def test_what_began_before_it_opened_neither_closes_nor_reopens_it() -> None:
    one = breaker()
    early = [one.begin(0) for _ in range(3)]
    fail(one, 0, times=2)
    probe = one.begin(5.0)
    one.succeeded(early[0], 5.0)
    one.failed(early[1], 5.0)
    one.cancelled(early[2])
    assert state_of(one) == HalfOpen(openings=1, probing=True)
    one.succeeded(probe, 5.0)
    assert state_of(one) == HalfOpen(openings=1, successes=1)


def fails_by_turns(one: CircuitBreaker, others: int) -> None:
    """Three of five calls fail, at most two in a row."""
    fail(one, 0, times=2, others=others)
    succeed(one, 10, times=2)
    fail(one, 20, others=others)


PATIENT = BreakerPolicy(failures_in_a_row=3, least_calls=5)


def test_a_rate_of_failures_opens_it_while_others_take_requests() -> None:
    one = breaker(PATIENT)
    fails_by_turns(one, others=1)
    assert isinstance(one.state, Open)


def test_the_last_healthy_endpoint_is_not_opened_by_a_rate_alone() -> None:
    one = breaker(PATIENT)
    fails_by_turns(one, others=0)
    assert isinstance(one.state, Closed)


def test_calls_outside_the_window_do_not_count_towards_the_rate() -> None:
    one = breaker(PATIENT)
    for now in (0, 100, 200, 300):
        succeed(one, now)
        fail(one, now, times=2, others=1)
    assert isinstance(one.state, Closed)


def test_a_closed_breaker_forgets_the_calls_before_it_opened() -> None:
    one = breaker(PATIENT)
    fail(one, 0, times=3, others=1)
    succeed(one, 6.0, times=2)
    fail(one, 6.0, times=2, others=1)
    assert isinstance(one.state, Closed)


class BreakerMachine(RuleBasedStateMachine):
    """Requests begin and end in any order, while time goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.breaker = breaker()
        self.running: list[Attempt] = []
        self.probe: Attempt | None = None

    @rule(seconds=st.sampled_from((0.0, 1.0, 5.0, 100.0)))
    def time_goes_on(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.breaker.admits(self.now))
    @rule()
    def begin(self) -> None:
        was_closed = isinstance(self.breaker.state, Closed)
        attempt = self.breaker.begin(self.now)
        self.running.append(attempt)
        if not was_closed:
            assert self.probe is None, "two probes at once"
            self.probe = attempt

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 100), how=st.sampled_from(("succeeded", "failed", "cancelled")))
    def end(self, which: int, how: str) -> None:
        attempt = self.running.pop(which % len(self.running))
        before = self.breaker.state
        if how == "succeeded":
            self.breaker.succeeded(attempt, self.now)
        elif how == "failed":
            self.breaker.failed(attempt, self.now)
        else:
            self.breaker.cancelled(attempt)
        if isinstance(before, HalfOpen) and attempt != self.probe:
            assert self.breaker.state == before
        if how == "cancelled" and isinstance(before, Closed):
            assert self.breaker.state == before
        if attempt == self.probe:
            self.probe = None

    @invariant()
    def a_breaker_is_half_open_and_probing_exactly_while_its_probe_runs(self) -> None:
        state = self.breaker.state
        assert (isinstance(state, HalfOpen) and state.probing) == (self.probe is not None)

    @invariant()
    def it_admits_again_at_the_latest_after_the_longest_cool_down_and_the_probe(self) -> None:
        longest = POLICY.most_cool_down_seconds * (1 + POLICY.jitter)
        assert self.probe is not None or self.breaker.admits(self.now + longest)


TestBreakerMachine = BreakerMachine.TestCase
