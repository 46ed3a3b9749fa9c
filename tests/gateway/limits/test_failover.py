from meshnet_gateway.limits.breaker import Closed, HalfOpen, Open
from meshnet_gateway.limits.failover import Choice, EmbedderFailover, Side, Turn


def embedder(dimensions: int | None = None) -> EmbedderFailover:
    return EmbedderFailover(dimensions, lambda: 0.0)


def failed_over() -> EmbedderFailover:
    one = embedder()
    assert one.failed(one.choose(0), 0) is Turn.FAILED_OVER
    return one


def test_the_first_failure_of_the_primary_fails_over() -> None:
    one = failed_over()
    assert one.choose(0).side is Side.FALLBACK
    facts = one.facts
    assert (facts.active, facts.failover_count, facts.recovery_count) == (Side.FALLBACK, 1, 0)
    assert facts.breaker == Open(5.0, 1)


def test_a_burst_that_fails_together_fails_over_once() -> None:
    one = embedder()
    burst = [one.choose(0) for _ in range(5)]
    assert [one.failed(choice, 0) for choice in burst] == [Turn.FAILED_OVER] + [Turn.NONE] * 4
    assert one.facts.failover_count == 1


def test_after_the_cool_down_one_request_probes_and_the_others_stay_at_the_fallback() -> None:
    one = failed_over()
    assert [one.choose(5.0).side for _ in range(3)] == [Side.PRIMARY, *[Side.FALLBACK] * 2]
    assert one.facts.active is Side.FALLBACK


def test_it_returns_by_itself_once_probes_succeed() -> None:
    one = failed_over()
    assert one.succeeded(one.choose(5.0), 5.0) is Turn.NONE
    assert one.succeeded(one.choose(5.0), 5.0) is Turn.RECOVERED
    assert one.facts.breaker == Closed()
    assert one.facts.recovery_count == 1
    assert one.choose(5.0).side is Side.PRIMARY


def test_a_failed_probe_is_no_second_failover() -> None:
    one = failed_over()
    assert one.failed(one.choose(5.0), 5.0) is Turn.NONE
    assert one.facts.failover_count == 1
    assert one.choose(14.9).side is Side.FALLBACK


def test_a_cancelled_probe_lets_another_one_probe() -> None:
    one = failed_over()
    one.cancelled(one.choose(5.0))
    assert one.facts.breaker == HalfOpen(openings=1)
    assert one.choose(5.0).side is Side.PRIMARY


def test_what_the_fallback_does_moves_nothing() -> None:
    one = failed_over()
    choices: list[Choice] = [one.choose(1.0) for _ in range(3)]
    before = one.facts
    assert one.failed(choices[0], 1.0) is Turn.NONE
    assert one.succeeded(choices[1], 1.0) is Turn.NONE
    one.cancelled(choices[2])
    assert one.facts == before


def test_the_configuration_or_the_first_answer_says_the_dimensions() -> None:
    one = embedder()
    assert one.fits(384)
    assert one.fits(384)
    assert not one.fits(768)
    assert not embedder(768).fits(384)
