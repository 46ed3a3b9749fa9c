import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.openai.errors import ApiError
from meshnet_gateway.serving.bodies import Bodies


def test_one_too_many_is_refused_for_a_moment_and_a_shorter_one_is_not() -> None:
    bodies = Bodies(10)
    with bodies.holding(6), pytest.raises(ApiError) as caught, bodies.holding(5):
        pass
    with bodies.holding(6), bodies.holding(4):
        assert bodies.held_bytes == 10

    assert (caught.value.status, caught.value.body.code) == (503, "overloaded")
    assert int(caught.value.headers["Retry-After"]) > 0
    assert bodies.held_bytes == 0


def test_what_was_announced_counts_until_the_body_has_been_read() -> None:
    bodies = Bodies(10)
    with bodies.holding(10) as body:
        body.settle(3)
        with bodies.holding(7):
            assert bodies.held_bytes == 10


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1)), max_size=30))
def test_whatever_comes_and_fails_the_bound_holds_and_nothing_stays(
    sizes: list[tuple[int, float]],
) -> None:
    bodies = Bodies(20)

    def come(left: list[tuple[int, float]]) -> None:
        if not left:
            raise ZeroDivisionError
        (announced, share), *others = left
        with bodies.holding(announced) as body:
            body.settle(int(announced * share))
            assert bodies.held_bytes <= bodies.most_bytes
            come(others)

    with pytest.raises((ApiError, ZeroDivisionError)):
        come(sizes)
    assert bodies.held_bytes == 0
