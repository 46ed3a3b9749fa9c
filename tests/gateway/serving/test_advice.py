import pytest

from meshnet_gateway.limits.upstream_metrics import UpstreamLoad
from meshnet_gateway.serving.advice import Advice, advise
from tests.gateway.serving.test_admission import ONE, served


@pytest.mark.parametrize(
    ("load", "waiting", "advice"),
    [
        (None, 0, Advice.NONE),
        (UpstreamLoad(waiting=5, kv_use=1.0), 0, Advice.NONE),
        (None, 1, Advice.SCALE_UP),
        (UpstreamLoad(waiting=0, kv_use=0.2), 1, Advice.SCALE_UP),
        (UpstreamLoad(waiting=2, kv_use=0.2), 1, Advice.SCALE_OUT),
        (UpstreamLoad(waiting=0, kv_use=0.95), 1, Advice.SCALE_OUT),
    ],
)
def test_who_waits_needs_more_of_what_is_full(
    load: UpstreamLoad | None, waiting: int, advice: Advice
) -> None:
    state = next(iter(served(ONE)))
    state.load = load

    assert advise(state.group, [state], waiting) is advice


def test_another_groups_endpoints_say_nothing() -> None:
    state, other = next(iter(served(ONE))), next(iter(served(ONE)))
    other.load = UpstreamLoad(waiting=2)

    assert advise(state.group, [state, other], 1) is Advice.SCALE_UP
