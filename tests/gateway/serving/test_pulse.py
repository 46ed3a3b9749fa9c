from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from meshnet_gateway.serving.pulse import APART_SECONDS, Pulse


@contextmanager
def waiting(pulse: Pulse) -> Iterator[list[float]]:
    """Have a request there, and list since when it hears that there was silence."""
    heard = list[float]()
    with pulse.heeded(heard.append):
        yield heard


def miss(pulse: Pulse, began: float) -> None:
    pulse.missed(pulse.look(began), began + 5.0)


def answer(pulse: Pulse, began: float) -> None:
    pulse.answered(pulse.look(began))


def test_who_waits_hears_of_silence_whenever_looks_in_a_row_went_unanswered() -> None:
    pulse = Pulse()
    with waiting(pulse) as heard:
        miss(pulse, 10.0)
        assert (heard, pulse.in_question, pulse.is_silent) == ([], True, False)
        miss(pulse, 15.0)
        assert (heard, pulse.is_silent) == ([10.0], True)
        miss(pulse, 20.0)
        assert heard == [10.0, 15.0]
    miss(pulse, 25.0)
    assert heard == [10.0, 15.0]


def test_an_answered_look_ends_the_row() -> None:
    pulse = Pulse()
    miss(pulse, 10.0)
    answer(pulse, 15.0)
    miss(pulse, 20.0)
    assert not pulse.is_silent


def test_looks_at_about_the_same_time_are_one() -> None:
    pulse = Pulse()
    first, second = pulse.look(10.0), pulse.look(12.0)
    pulse.missed(first, 15.0)
    pulse.missed(second, 17.0)
    assert not pulse.is_silent

    hasty = Pulse()
    for began in (10.0, 10.0 + APART_SECONDS / 2):
        hasty.missed(hasty.look(began), began)
    assert not hasty.is_silent


def test_one_that_answers_a_request_while_looks_go_unanswered_is_deaf_and_not_dead() -> None:
    pulse = Pulse()
    with waiting(pulse) as heard:
        miss(pulse, 10.0)
        pulse.gave_an_answer()
        for began in (15.0, 20.0, 25.0):
            miss(pulse, began)
        assert (heard, pulse.is_silent) == ([], False)


def test_one_that_answers_a_look_while_it_is_at_work_is_not_deaf() -> None:
    pulse = Pulse()
    miss(pulse, 10.0)
    pulse.gave_an_answer()
    answer(pulse, 15.0)
    with waiting(pulse):
        before = pulse.look(20.0)
    with waiting(pulse) as heard:
        # It was at another request's work when the look came, and at this one's when it answered.
        pulse.answered(before)
        for began in (25.0, 30.0):
            miss(pulse, began)
        assert not heard

        answer(pulse, 35.0)
        for began in (40.0, 45.0):
            miss(pulse, began)
        assert heard == [40.0]


def test_a_look_means_something_while_requests_are_there_or_the_last_one_went_unanswered() -> None:
    pulse = Pulse()
    heeded = [pulse.is_heeded]
    with waiting(pulse):
        heeded.append(pulse.is_heeded)
        miss(pulse, 10.0)
    heeded.append(pulse.is_heeded)
    answer(pulse, 15.0)
    heeded.append(pulse.is_heeded)
    assert heeded == [False, True, True, False]


@given(st.lists(st.sampled_from(["look", "miss", "begin"]), max_size=40))
def test_nobody_hears_of_silence_that_an_answer_has_broken(happens: list[str]) -> None:
    pulse, now, last_sign = Pulse(), 0.0, 0.0
    with waiting(pulse) as heard:
        for what in happens:
            now += 10.0
            if what == "miss":
                miss(pulse, now)
                continue
            last_sign = now
            heard.clear()
            if what == "look":
                answer(pulse, now)
            else:
                pulse.gave_an_answer()

    assert all(since > last_sign for since in heard)
