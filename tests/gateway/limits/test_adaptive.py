from hypothesis import given
from hypothesis import strategies as st

from meshnet_gateway.limits.adaptive import AdaptiveLimit
from meshnet_gateway.limits.pace import EmbeddingPace


@given(
    st.lists(
        st.tuples(st.booleans(), st.floats(1e-3, 1e3), st.integers(0, 99), st.floats(0, 9)),
        max_size=200,
    )
)
def test_the_limit_stays_between_floor_and_ceiling(
    events: list[tuple[bool, float, int, float]],
) -> None:
    limit = AdaptiveLimit(2, 9)
    now = 0.0
    for hard, seconds, in_flight, pause in events:
        now += pause
        if hard:
            limit.overloaded(now)
        else:
            limit.observe(EmbeddingPace(1, seconds), in_flight, now)
        assert 2 <= limit.limit <= 9
