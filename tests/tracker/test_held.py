from hypothesis import given
from hypothesis import strategies as st

from meshnet_tracker.held import HeldRequests
from meshnet_tracker.planning.snapshot import VariantKey

TINY = VariantKey("tiny", "bfloat16")
OTHER = VariantKey("other", "bfloat16")


def test_who_was_admitted_earlier_and_waits_is_ahead() -> None:
    held = HeldRequests()
    with held.waiting(TINY, 3), held.waiting(TINY, 5):
        assert [held.ahead(TINY, sequence) for sequence in (2, 3, 4, 5, 6)] == [0, 0, 1, 1, 2]


def test_those_of_another_model_are_not_ahead() -> None:
    held = HeldRequests()
    with held.waiting(OTHER, 1):
        assert held.ahead(TINY, 2) == 0


def test_who_waits_no_more_is_not_ahead() -> None:
    held = HeldRequests()
    with held.waiting(TINY, 1):
        pass
    assert held.ahead(TINY, 2) == 0


@given(st.sets(st.integers(1, 50)), st.integers(1, 50))
def test_the_position_is_how_many_smaller_numbers_wait(waiting: set[int], own: int) -> None:
    held = HeldRequests()
    blocks = [held.waiting(TINY, sequence) for sequence in sorted(waiting)]
    for block in blocks:
        block.__enter__()
    assert held.ahead(TINY, own) == len([other for other in waiting if other < own])
    for block in reversed(blocks):
        block.__exit__(None, None, None)
    assert held.ahead(TINY, 99) == 0
