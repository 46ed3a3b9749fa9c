from meshnet_common.ids import WorkerId
from meshnet_worker.transport.round_trips import (
    MOST_REMEMBERED,
    MOST_UNANSWERED,
    RoundTrips,
    shortest_trips,
)


def pinged(*seconds: float) -> RoundTrips:
    trips = RoundTrips()
    for nonce, each in enumerate(seconds):
        trips.sent(nonce, float(nonce))
        trips.answered(nonce, nonce + each)
    return trips


def test_nothing_is_known_before_the_first_answer() -> None:
    trips = RoundTrips()
    trips.sent(1, 0.0)
    assert trips.shortest() is None


def test_the_shortest_of_the_last_few_counts() -> None:
    assert pinged(0.5, 0.25, 0.375).shortest() == 0.25
    assert pinged(0.25, *[0.5] * MOST_REMEMBERED).shortest() == 0.5


def test_a_pong_that_nobody_waits_for_says_nothing() -> None:
    trips = RoundTrips()
    trips.sent(1, 0.0)
    trips.answered(2, 0.125)
    trips.answered(1, 0.5)
    trips.answered(1, 0.75)
    assert trips.shortest() == 0.5


def test_pings_that_nobody_answers_are_forgotten() -> None:
    trips = RoundTrips()
    for nonce in range(MOST_UNANSWERED + 1):
        trips.sent(nonce, 0.0)
    trips.answered(0, 0.125)
    assert trips.shortest() is None
    trips.answered(1, 0.125)
    assert trips.shortest() == 0.125


def test_the_shorter_of_two_links_to_a_peer_counts() -> None:
    a, b = WorkerId("a"), WorkerId("b")
    links = [(a, pinged(0.5)), (a, pinged(0.25)), (b, RoundTrips())]
    assert shortest_trips(links) == {a: 0.25}
