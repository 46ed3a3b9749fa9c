from collections import Counter

from meshnet_common.affinity import prefix_key, share

NAMES = [f"w{n}" for n in range(5)]
SYSTEM, FIRST, ANSWER = ("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello!")


def winners(names: list[str], keys: range) -> list[str]:
    return [min(names, key=lambda name: share(f"key {key}", name)) for key in keys]


def test_all_turns_of_a_chat_begin_alike() -> None:
    first = prefix_key("tiny", [SYSTEM, FIRST])
    assert prefix_key("tiny", [SYSTEM, FIRST, ANSWER, ("user", "And?")]) == first
    assert prefix_key("tiny", [FIRST, ANSWER]) == prefix_key("tiny", [FIRST])


def test_another_beginning_or_another_model_is_another_chat() -> None:
    keys = {
        prefix_key("tiny", [SYSTEM, FIRST]),
        prefix_key("large", [SYSTEM, FIRST]),
        prefix_key("tiny", [FIRST]),
        prefix_key("tiny", [SYSTEM, ("user", "Hi!")]),
        prefix_key("tiny", [("user", "system"), ("user", "Hi")]),
    }
    assert len(keys) == 5


def test_a_share_is_the_same_in_every_process() -> None:
    assert share("key", "w") == share("key", "w") == 0.02768683579416409
    assert all(0 <= share(f"{n}", "w") < 1 for n in range(100))


def test_keys_are_spread_over_all() -> None:
    counts = Counter(winners(NAMES, range(1000)))
    assert all(150 < counts[name] < 250 for name in NAMES)


def test_one_that_leaves_moves_only_its_own_keys() -> None:
    before = winners(NAMES, range(500))
    after = winners(NAMES[1:], range(500))
    assert all(was == now for was, now in zip(before, after, strict=True) if was != NAMES[0])


def test_one_that_joins_takes_its_part_and_moves_no_other_key() -> None:
    before = winners(NAMES[1:], range(1000))
    after = winners(NAMES, range(1000))
    moved = [now for was, now in zip(before, after, strict=True) if was != now]
    assert set(moved) == {NAMES[0]}
    assert 150 < len(moved) < 250
