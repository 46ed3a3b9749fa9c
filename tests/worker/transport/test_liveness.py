from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.ids import WorkerId
from meshnet_worker.transport.liveness import Deadlines, Pulse, Signs, Stalls

DEADLINES = Deadlines()
PEER = WorkerId("w1")

MOMENTS = st.lists(st.floats(0.01, 2.9), min_size=1, max_size=30)
LOOKS = st.lists(st.floats(0.01, 1.4), min_size=1, max_size=30)


def signs() -> Signs:
    return Signs(0.0, DEADLINES)


@given(MOMENTS, st.floats(0.0, 1.0))
def test_a_peer_that_is_heard_at_least_every_three_seconds_is_never_silent(
    pauses: list[float], share: float
) -> None:
    link, now = signs(), 0.0
    for pause in pauses:
        assert not link.is_silent(now + share * pause)
        now += pause
        link.hear(now)


@given(LOOKS)
def test_a_peer_that_is_never_heard_is_silent_from_the_third_second_on(looks: list[float]) -> None:
    link, pulse, now = signs(), Pulse(0.0, DEADLINES), 0.0
    for look in looks:
        now += look
        assert not pulse.beat(now)
        assert link.is_silent(now) == (now >= DEADLINES.silence_seconds)


@given(st.floats(1.51, 1e6), LOOKS)
def test_a_pause_of_its_own_is_not_held_against_peers(
    paused_seconds: float, looks: list[float]
) -> None:
    link, pulse = signs(), Pulse(0.0, DEADLINES)
    woken = paused_seconds + DEADLINES.look_seconds
    link.excuse(pulse.beat(woken), woken)
    for look in looks:
        heard_ago = DEADLINES.look_seconds + look
        assert link.is_silent(woken + look) == (heard_ago >= DEADLINES.silence_seconds)


@given(st.lists(st.floats(1.51, 100.0), min_size=1, max_size=20))
def test_a_worker_that_is_paused_again_and_again_finds_a_silent_peer(pauses: list[float]) -> None:
    link, pulse, now = signs(), Pulse(0.0, DEADLINES), 0.0
    for number, paused_seconds in enumerate(pauses, 1):
        now += DEADLINES.look_seconds + paused_seconds
        link.excuse(pulse.beat(now), now)
        awake_seconds = number * DEADLINES.look_seconds
        assert link.is_silent(now + 0.1) == (awake_seconds + 0.1 >= DEADLINES.silence_seconds)


def test_who_was_heard_within_a_pause_is_not_heard_in_the_future() -> None:
    link = signs()
    link.hear(9.0)
    link.excuse(8.0, 10.0)
    assert not link.is_silent(12.9)
    assert link.is_silent(13.0)


def test_only_what_a_look_is_late_by_is_a_pause() -> None:
    pulse = Pulse(0.0, DEADLINES)
    assert [pulse.beat(now) for now in (0.5, 2.0, 11.0, 11.5)] == [0.0, 0.0, 8.5, 0.0]


def test_what_was_heard_later_is_never_forgotten_for_what_was_heard_before() -> None:
    link = signs()
    link.hear(5.0)
    link.hear(1.0)
    assert not link.is_silent(7.9)
    assert link.is_silent(8.0)


@given(LOOKS)
def test_a_link_is_pinged_once_a_second(looks: list[float]) -> None:
    link, now, pinged = signs(), 0.0, 0.0
    for look in looks:
        now += look
        if link.is_to_be_pinged(now):
            assert now - pinged >= DEADLINES.ping_seconds
            pinged = now
        assert now - pinged < DEADLINES.ping_seconds + look


def test_a_worker_looks_often_enough_to_ping_in_time() -> None:
    assert DEADLINES.look_seconds <= DEADLINES.ping_seconds
    assert DEADLINES.silence_seconds + DEADLINES.look_seconds < 5.0


def test_a_step_that_takes_as_long_as_its_size_explains_is_no_stall() -> None:
    stalls = Stalls(DEADLINES)
    assert not any(stalls.is_news(PEER, overdue, 0.0) for overdue in (0.0, 2.9, float("nan")))


def test_a_stall_is_news_when_it_begins_and_every_three_seconds_while_it_lasts() -> None:
    stalls = Stalls(DEADLINES)
    told = [now for now in range(10) if stalls.is_news(PEER, float(now), float(now))]
    assert told == [3, 6, 9]


def test_a_stall_after_another_is_news_at_once() -> None:
    stalls = Stalls(DEADLINES)
    assert stalls.is_news(PEER, 3.0, 0.0)
    assert not stalls.is_news(PEER, 0.0, 1.0)
    assert stalls.is_news(PEER, 3.5, 2.0)


def test_a_stall_says_nothing_of_another_peer_nor_of_one_that_has_come_back() -> None:
    stalls = Stalls(DEADLINES)
    assert stalls.is_news(PEER, 3.0, 0.0)
    assert stalls.is_news(WorkerId("w2"), 3.0, 0.5)
    stalls.forget(PEER)
    assert stalls.is_news(PEER, 3.0, 1.0)
