import asyncio
from collections.abc import Sequence

import pytest

from meshnet_tracker.batches import Batches


class Doubling:
    """Work that notes its turns, and waits at a gate."""

    def __init__(self) -> None:
        self.turns: list[list[int]] = []
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, numbers: Sequence[int]) -> Sequence[int]:
        self.turns.append(list(numbers))
        self.began.set()
        await self.gate.wait()
        if 13 in numbers:
            raise ValueError("13")
        return [2 * number for number in numbers]


async def submit_all(batches: Batches[int, int], *numbers: int) -> list[int | str]:
    """Submit all at once; answers each one's result, or the name of its error."""

    async def submit(number: int) -> int | str:
        try:
            return await batches.submit(number)
        except ValueError as error:
            return type(error).__name__

    async with asyncio.TaskGroup() as tasks:
        submitted = [tasks.create_task(submit(number)) for number in numbers]
    return [task.result() for task in submitted]


async def test_callers_that_come_together_share_one_turn_and_get_their_own_results() -> None:
    work = Doubling()
    assert await submit_all(Batches(work), 1, 2, 3) == [2, 4, 6]
    assert work.turns == [[1, 2, 3]]


async def test_a_caller_that_comes_alone_does_not_wait() -> None:
    work = Doubling()
    batches = Batches(work, pause_seconds=3600)
    async with asyncio.timeout(10):
        assert await batches.submit(1) == 2


async def test_who_comes_while_others_are_served_waits_for_the_next_turn() -> None:
    work = Doubling()
    work.gate.clear()
    batches = Batches(work, pause_seconds=0)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(batches.submit(1))
        await work.began.wait()
        later = [tasks.create_task(batches.submit(number)) for number in (2, 3)]
        await asyncio.sleep(0)
        assert not first.done()
        work.gate.set()
    assert [first.result(), *(task.result() for task in later)] == [2, 4, 6]
    assert work.turns == [[1], [2, 3]]


async def test_a_turn_takes_so_many_at_most() -> None:
    work = Doubling()
    batches = Batches(work, pause_seconds=0, most_at_once=2)
    assert await submit_all(batches, 1, 2, 3, 4, 5) == [2, 4, 6, 8, 10]
    assert work.turns == [[1, 2], [3, 4], [5]]


async def test_work_that_fails_fails_for_its_callers_and_nobody_else() -> None:
    work = Doubling()
    batches = Batches(work, pause_seconds=0, most_at_once=2)
    assert await submit_all(batches, 13, 2, 3) == ["ValueError", "ValueError", 6]
    assert await batches.submit(4) == 8


async def test_a_caller_that_gives_up_stops_nothing_for_the_others() -> None:
    work = Doubling()
    work.gate.clear()
    batches = Batches(work)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        leaver, stayer = (tasks.create_task(batches.submit(number)) for number in (1, 2))
        await work.began.wait()
        leaver.cancel()
        await asyncio.sleep(0)
        work.gate.set()
    assert stayer.result() == 4
    assert leaver.cancelled()


async def test_who_gave_up_before_its_turn_is_left_out() -> None:
    work = Doubling()
    batches = Batches(work)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await batches.submit(1)
    assert await batches.submit(2) == 4
    assert work.turns == [[2]]
