from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.kv_pool import KvCapacityError, KvExhaustedError, KvPool, KvRequest
from tests.worker.builders import kv_request

BLOCKS = 10
BLOCK_POSITIONS = 4
LAYERS = 4


def pool(blocks: int = BLOCKS) -> KvPool:
    made = KvPool(BLOCK_POSITIONS)
    made.blocks = blocks
    return made


def test_a_started_block_is_held_whole() -> None:
    one = pool()
    one.reserve(kv_request(positions=BLOCK_POSITIONS + 1))
    assert (one.most_used, one.used_in_all()) == (2, 2 * LAYERS)


def test_a_session_uses_the_layers_of_its_hop_and_no_others() -> None:
    one = pool()
    one.reserve(kv_request(positions=12, layers=(1, 3)))
    free = [one.free(kv_request(layers=run).layers) for run in ((0, 1), (1, 2), (0, 4), (3, 4))]
    assert free == [10, 7, 7, 10]


def test_what_is_free_for_a_run_is_the_least_in_any_of_its_layers() -> None:
    one = pool()
    one.reserve(kv_request(1, positions=36, layers=(0, 2)))
    one.reserve(kv_request(2, positions=8, layers=(2, 4)))
    assert one.free(kv_request(layers=(1, 3)).layers) == 1


def test_a_larger_reservation_takes_only_the_difference_and_a_smaller_one_nothing() -> None:
    one = pool()
    for positions in (20, 40, 8):
        one.reserve(kv_request(positions=positions))
    assert one.most_used == BLOCKS


def test_a_refused_reservation_keeps_what_was_held() -> None:
    one = pool()
    one.reserve(kv_request(positions=20))
    with pytest.raises(KvExhaustedError, match=r"needs 6 more KV Blocks .* 5 of 10 are free"):
        one.reserve(kv_request(positions=44))
    assert one.most_used == 5


def test_what_is_given_back_is_free_again() -> None:
    one = pool()
    one.reserve(kv_request(positions=20))
    for _ in range(2):
        one.release(1)
    assert (one.most_used, one.used_in_all()) == (0, 0)


def test_nobody_gives_way_while_there_is_room() -> None:
    one = pool()
    one.reserve(kv_request(2, 20, seq=2))
    assert one.victims(kv_request(1, 20, seq=1)) == ()


def test_the_ones_admitted_last_give_way_first_and_no_more_than_needed() -> None:
    one = pool()
    for session in (2, 3, 4, 5):
        one.reserve(kv_request(session, 8, seq=session))
    assert one.victims(kv_request(1, 20, seq=1)) == (5, 4)


def test_only_those_whose_blocks_help_give_way() -> None:
    one = pool()
    one.reserve(kv_request(2, 40, seq=2, layers=(0, 2)))
    one.reserve(kv_request(3, 40, seq=3, layers=(2, 4)))
    assert one.victims(kv_request(1, 4, seq=1, layers=(1, 2))) == (2,)


def test_an_older_one_never_gives_way() -> None:
    one = pool()
    one.reserve(kv_request(1, 36, seq=1))
    one.reserve(kv_request(3, 4, seq=3))
    with pytest.raises(KvExhaustedError):
        one.victims(kv_request(2, 12, seq=2))


def test_one_of_the_same_admission_never_gives_way() -> None:
    one = pool()
    one.reserve(kv_request(1, 40, seq=1))
    with pytest.raises(KvExhaustedError):
        one.victims(kv_request(2, 4, seq=1))


def test_of_two_choices_of_one_answer_the_later_one_gives_way() -> None:
    first, second = kv_request(1, 40, seq=1), replace(kv_request(2, 40, seq=1), order=(1, 1))
    one = pool()
    one.reserve(second)
    assert one.victims(first) == (2,)
    one.release(2)
    one.reserve(first)
    with pytest.raises(KvExhaustedError):
        one.victims(second)


def test_what_empty_pools_could_not_hold_is_refused_for_good() -> None:
    one = pool()
    one.reserve(kv_request(1, 40, seq=1))
    assert one.capacity == BLOCKS * BLOCK_POSITIONS
    with pytest.raises(KvCapacityError) as caught:
        one.victims(kv_request(1, one.capacity + 1, seq=1))
    assert caught.value.figures.capacity == one.capacity


REQUESTS = st.builds(
    lambda session, positions, start, size: kv_request(
        session, positions, seq=session, layers=(start, min(LAYERS, start + size))
    ),
    session=st.integers(1, 6),
    positions=st.integers(1, 45),
    start=st.integers(0, LAYERS - 1),
    size=st.integers(1, LAYERS),
)


@given(st.lists(REQUESTS, max_size=25))
def test_once_its_victims_are_gone_a_request_fits(requests: list[KvRequest]) -> None:
    one = pool()
    places: dict[int, KvRequest] = {}
    for request in requests:
        # A Session has one place on a Route.
        asked = places.get(request.session, request)
        try:
            victims = one.victims(asked)
        except KvExhaustedError:
            continue
        for victim in victims:
            assert victim > asked.session
            one.release(victim)
            del places[victim]
        one.reserve(asked)
        places[asked.session] = asked
        assert one.most_used <= one.blocks
    for session in tuple(places):
        one.release(session)
    assert (one.most_used, one.used_in_all()) == (0, 0)
