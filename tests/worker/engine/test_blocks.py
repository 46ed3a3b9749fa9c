from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.engine.blocks import FreeBlocks

COUNT = 12
KINDS = st.sampled_from(["run", "any", "at", "give"])
ACTIONS = st.lists(st.tuples(KINDS, st.integers(1, COUNT)), max_size=40)


def test_a_run_is_taken_where_there_is_most_room_to_grow() -> None:
    free = FreeBlocks(COUNT)
    held = free.take_run(8)
    free.give(held[1:3])
    assert free.take_run(2) == [8, 9]


def test_blocks_apart_are_taken_when_no_run_is_long_enough() -> None:
    free = FreeBlocks(6)
    held = free.take_run(6)
    free.give([held[0], held[2], held[4]])
    assert free.take_run(2) == []
    assert sorted(free.take_any(3)) == [0, 2, 4]


def test_blocks_that_are_not_free_are_not_taken() -> None:
    free = FreeBlocks(4)
    free.take_run(3)
    assert (free.take_at(1, 1), free.take_at(3, 2), free.take_any(2)) == ([], [], [])
    assert free.take_at(3, 1) == [3]


@given(ACTIONS)
def test_no_block_is_held_twice_and_none_is_lost(actions: list[tuple[str, int]]) -> None:
    free, held = FreeBlocks(COUNT), list[int]()
    for kind, number in actions:
        match kind:
            case "run":
                taken = free.take_run(number)
                assert taken == list(range(taken[0], taken[0] + number) if taken else [])
            case "any":
                taken = free.take_any(number)
                assert len(taken) == (number if number <= COUNT - len(held) else 0)
            case "at":
                taken = free.take_at(number - 1, 1)
            case _:
                given_back, held = held[:number], held[number:]
                free.give(given_back[::-1])
                taken = []
        held += taken
        assert len(set(held)) == len(held)
        assert len(free) + len(held) == COUNT
    free.give(held)
    assert free.take_run(COUNT) == list(range(COUNT))
