from collections import Counter
from collections.abc import Iterable

import pytest

from meshnet_gateway.limits.spread import Candidate, distance, in_turn, least_loaded, warmest

KEYS = [f"key {number}" for number in range(2000)]
NAMES = [f"http://gpu{number}:8000" for number in range(5)]


def idle(names: Iterable[str]) -> list[Candidate]:
    return [Candidate(name, in_flight=0, limit=4) for name in names]


def homes(candidates: list[Candidate]) -> list[str]:
    return [warmest(candidates, key)[0].name for key in KEYS]


def test_the_least_loaded_goes_first_by_its_share_of_its_own_limit() -> None:
    large = Candidate("large", in_flight=4, limit=16)
    small = Candidate("small", in_flight=1, limit=2)
    assert least_loaded([small, large], None) == (large, small)


def test_one_at_its_limit_is_left_out_of_every_order() -> None:
    full, over = Candidate("full", 2, 2), Candidate("over", 3, 2)
    none = Candidate("none", 0, 0)
    free = Candidate("free", 1, 2)
    for order in (
        least_loaded([full, over, none, free], None),
        in_turn([full, over, none, free]),
        warmest([full, over, none, free], "key"),
    ):
        assert order == (free,)


def test_among_equals_the_longest_idle_goes_first_without_a_key() -> None:
    first, second = Candidate("a", 1, 4, last_turn=8), Candidate("b", 1, 4, last_turn=7)
    assert least_loaded([first, second], None) == (second, first)


def test_among_equals_the_hash_decides_with_a_key() -> None:
    best = {least_loaded(idle(NAMES), key)[0].name for key in KEYS}
    assert best == set(NAMES)
    assert all(
        least_loaded(idle(NAMES), key) == least_loaded(idle(NAMES[::-1]), key) for key in KEYS[:50]
    )


def test_in_turn_goes_round() -> None:
    turns = dict.fromkeys(NAMES, 0)
    went = []
    for turn in range(1, 11):
        name = in_turn([Candidate(name, 0, 4, last_turn=turns[name]) for name in NAMES])[0].name
        turns[name] = turn
        went.append(name)
    assert went == NAMES * 2


def test_removing_an_endpoint_moves_exactly_its_own_keys() -> None:
    before = homes(idle(NAMES))
    for gone in NAMES:
        after = homes(idle(name for name in NAMES if name != gone))
        moved = [was for was, now in zip(before, after, strict=True) if was != now]
        assert set(moved) == {gone}
        assert len(moved) == Counter(before)[gone]


def test_adding_an_endpoint_moves_about_its_part_of_the_keys_and_all_of_them_to_it() -> None:
    before, after = homes(idle(NAMES)), homes(idle([*NAMES, "http://new:8000"]))
    moved = [now for was, now in zip(before, after, strict=True) if was != now]
    assert set(moved) == {"http://new:8000"}
    assert len(moved) / len(KEYS) == pytest.approx(1 / 6, abs=0.03)


def test_an_endpoint_of_twice_the_weight_gets_twice_as_many_keys() -> None:
    candidates = [Candidate("a", 0, 4, weight=2.0), Candidate("b", 0, 4), Candidate("c", 0, 4)]
    counts = Counter(homes(candidates))
    assert counts["a"] / len(KEYS) == pytest.approx(0.5, abs=0.04)
    assert counts["b"] / len(KEYS) == pytest.approx(0.25, abs=0.04)


def test_a_heavier_weight_only_draws_keys_to_its_endpoint() -> None:
    before = homes([Candidate("a", 0, 4), *idle(NAMES)])
    after = homes([Candidate("a", 0, 4, weight=3.0), *idle(NAMES)])
    assert {now for was, now in zip(before, after, strict=True) if was != now} == {"a"}


def test_a_chat_stays_at_its_endpoint_though_that_has_more_to_do() -> None:
    for key in KEYS[:20]:
        home = warmest(idle(NAMES), key)[0].name
        loads = [Candidate(name, 64 if name == home else 0, 1000) for name in NAMES]
        assert warmest(loads, key)[0].name == home


def test_a_chat_leaves_its_endpoint_when_loads_are_far_apart() -> None:
    for key in KEYS[:20]:
        home = warmest(idle(NAMES), key)[0].name
        loads = [Candidate(name, 65 if name == home else 0, 1000) for name in NAMES]
        assert warmest(loads, key)[-1].name == home


def test_loads_far_apart_in_number_but_not_in_ratio_leave_chats_where_they_are() -> None:
    key = KEYS[0]
    home = warmest(idle(NAMES), key)[0].name
    loads = [Candidate(name, 300 if name == home else 200, 1000) for name in NAMES]
    assert warmest(loads, key)[0].name == home


def test_a_key_is_never_infinitely_far_nor_at_no_distance_from_all() -> None:
    distances = [distance(key, candidate) for key in KEYS[:100] for candidate in idle(NAMES)]
    assert all(0 <= far < 50 for far in distances)
    assert len(set(distances)) == len(distances)
