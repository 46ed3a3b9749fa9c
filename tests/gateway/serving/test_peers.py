import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_gateway.config.settings import Peer
from meshnet_gateway.federation.peers import Presence
from meshnet_gateway.serving.peers import COOL_SECONDS, LACKS_SECONDS, MOST_LACKS, Peers, Wanted
from tests.gateway.running import settings

NEAR = Peer(id="near", base_url="http://near")
FAR = Peer(id="far", base_url="http://far", priority=1)
WANTED = Wanted("smol", Presence.UNKNOWN, ())


def peers(*listed: Peer) -> Peers:
    return Peers(settings(peers=listed))


def test_the_next_is_the_first_by_priority_that_has_not_just_failed() -> None:
    known = peers(NEAR, FAR)
    assert known.choose(WANTED, (), 100.0).peer == NEAR

    known.failed(NEAR, 100.0)
    assert known.choose(WANTED, (), 100.0).peer == FAR
    assert known.choose(WANTED, (), 100.0 + COOL_SECONDS).peer == NEAR
    assert known.choose(WANTED, (NEAR.base_url,), 200.0).peer == FAR


def test_one_that_has_failed_is_better_than_none_and_said_to_be_unfit() -> None:
    known = peers(NEAR)
    known.failed(NEAR, 100.0)
    choice = known.choose(WANTED, (), 100.0)

    assert (choice.peer, choice.is_fit) == (NEAR, False)


def test_a_model_that_nobody_lists_is_unknown() -> None:
    with pytest.raises(ApiError) as caught:
        peers().choose(WANTED, (), 0.0)

    assert caught.value.status == 404


def test_what_is_under_way_is_counted_until_its_end_however_that_is() -> None:
    known = peers(NEAR)

    def fail() -> None:
        with known.under_way(NEAR):
            assert known.in_flight(NEAR) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert known.in_flight(NEAR) == 0


def test_peers_that_are_read_anew_keep_what_is_under_way() -> None:
    known = peers(NEAR)
    with known.under_way(NEAR):
        known.apply(settings(peers=(NEAR, FAR)))
        assert known.in_flight(NEAR) == 1

    assert known.listed == (NEAR, FAR)


def test_a_peer_is_fit_for_a_model_while_nothing_speaks_against_it() -> None:
    known = peers(NEAR, Peer(id="other", base_url="http://other", models=("other",)))

    assert known.any_fit("smol", (), (), 100.0)
    assert not known.any_fit("smol", ("near",), (), 100.0)
    assert not known.any_fit("smol", ("a", "b"), (), 100.0)
    assert not known.any_fit("smol", (), (NEAR.base_url,), 100.0)
    known.failed(NEAR, 100.0)
    assert not known.any_fit("smol", (), (), 100.0)
    assert known.any_fit("other", (), (), 100.0)


def test_a_peer_that_is_silent_comes_last() -> None:
    known = peers(NEAR, FAR)
    for began in (10.0, 20.0):
        known.pulse(NEAR).missed(known.pulse(NEAR).look(began), began + 5)

    assert known.choose(WANTED, (), 100.0).peer == FAR


def test_a_peer_that_did_not_know_a_name_is_not_asked_for_it_again_for_a_moment() -> None:
    known = peers(NEAR, FAR)
    known.lacks(NEAR, "smol", 100.0)
    known.lacks(FAR, "other", 100.0)

    assert known.choose(WANTED, (), 100.0).peer == FAR
    assert known.choose(WANTED, (), 100.0 + LACKS_SECONDS).peer == NEAR
    for number in range(MOST_LACKS):
        known.lacks(NEAR, f"made up {number}", 100.0)
    assert known.choose(WANTED, (), 100.0).peer == NEAR
