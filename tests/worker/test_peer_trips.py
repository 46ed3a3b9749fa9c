from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import PeerAddress, RoundTrip
from meshnet_worker.peer_trips import KEEP_SECONDS, MOST_ASKED, MOST_TOLD, PeerTrips

A, B = WorkerId("a"), WorkerId("b")


def address(name: str, url: str = "http://there:1") -> PeerAddress:
    return PeerAddress(worker_id=name, url=url)


def taken(trips: PeerTrips) -> list[str]:
    names = []
    while (peer := trips.next_peer()) is not None:
        names.append(peer.worker_id)
    return names


def test_what_is_asked_for_is_taken_out_once() -> None:
    trips = PeerTrips(WorkerId("own"))
    trips.ask([address("a"), address("b"), address("a")])
    assert taken(trips) == ["b", "a"]
    assert taken(trips) == []


def test_neither_itself_nor_what_is_no_http_is_measured() -> None:
    trips = PeerTrips(WorkerId("own"))
    trips.ask([address("own"), address("a", "file:///etc/passwd"), address("b", "ftp://there")])
    trips.ask([address("c", "HTTPS://there")])
    assert taken(trips) == ["c"]


def test_of_too_many_the_newest_are_measured() -> None:
    trips = PeerTrips(WorkerId("own"))
    trips.ask(address(f"w{number}") for number in range(MOST_ASKED + 2))
    assert taken(trips) == [f"w{number}" for number in range(2, MOST_ASKED + 2)]


def test_a_link_knows_better_than_a_question() -> None:
    trips = PeerTrips(WorkerId("own"))
    trips.measured(B, 0.5, 0.0)
    trips.measured(A, 0.25, 0.0)
    told = trips.told({B: 0.125}, 1.0)
    assert told == (RoundTrip(worker_id="a", seconds=0.25), RoundTrip(worker_id="b", seconds=0.125))


def test_what_was_measured_long_ago_is_told_no_more() -> None:
    trips = PeerTrips(WorkerId("own"))
    trips.measured(A, 0.5, 0.0)
    assert len(trips.told({}, KEEP_SECONDS - 1)) == 1
    assert trips.told({}, KEEP_SECONDS) == ()


def test_of_too_many_the_shortest_are_told() -> None:
    trips = PeerTrips(WorkerId("own"))
    linked = {WorkerId(f"w{number:03}"): 1.0 - number / 1000 for number in range(MOST_TOLD + 9)}
    told = trips.told(linked, 0.0)
    assert [each.worker_id for each in told] == sorted(linked)[9:]
