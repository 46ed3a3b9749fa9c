from structlog.testing import capture_logs

from meshnet_common.edge.clock import ManualClock
from meshnet_gateway.limits.failover import Side
from meshnet_gateway.serving.embedder import Embedder
from meshnet_gateway.serving.endpoint_state import Outcome


def tried(one: Embedder, clock: ManualClock, outcome: Outcome, *, spared: bool = False) -> Side:
    with one.trial("e", clock.now, spared=spared) as trial:
        trial.outcome = outcome
    return trial.side


def test_it_goes_to_the_fallback_at_the_first_fault_and_comes_back_by_itself() -> None:
    one, clock = Embedder(None, lambda: 0.0), ManualClock(100.0)
    with capture_logs() as logs:
        assert tried(one, clock, Outcome.FAILED) is Side.PRIMARY
        assert tried(one, clock, Outcome.SUCCEEDED) is Side.FALLBACK
        clock.advance(60.0)
        sides = [tried(one, clock, Outcome.SUCCEEDED) for _ in range(3)]

    assert sides == [Side.PRIMARY] * 3
    assert [(log["log_level"], log["event"]) for log in logs] == [
        ("warning", "embedder failed over to its fallback"),
        ("info", "embedder is back"),
    ]


def test_one_that_is_spared_is_not_probed() -> None:
    one, clock = Embedder(None, lambda: 0.0), ManualClock(100.0)

    assert tried(one, clock, Outcome.SUCCEEDED, spared=True) is Side.FALLBACK


def test_a_probe_whose_client_leaves_may_be_made_again() -> None:
    one, clock = Embedder(None, lambda: 0.0), ManualClock(100.0)
    with capture_logs():
        tried(one, clock, Outcome.FAILED)
    clock.advance(60.0)

    assert [tried(one, clock, Outcome.UNSAID) for _ in range(2)] == [Side.PRIMARY] * 2
