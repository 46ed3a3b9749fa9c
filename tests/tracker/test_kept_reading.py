import asyncio

import pytest

from meshnet_common.edge.clock import loop_time
from meshnet_tracker.kept_reading import PAUSE_SECONDS, KeptReading
from tests.tracker.running import until


class Source:
    """What is read: a number that grows with each reading."""

    def __init__(self) -> None:
        self.readings = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def read(self) -> int:
        self.readings += 1
        number = self.readings
        await self.go_on.wait()
        return number


async def test_many_share_one_reading_while_it_is_fresh() -> None:
    source = Source()
    kept = KeptReading(source.read, 60.0)
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(kept.get()) for _ in range(5)]
    assert [one.result() for one in asked] == [1] * 5


async def test_what_is_fresh_is_had_while_others_wait_for_a_newer_one() -> None:
    source = Source()
    kept = KeptReading(source.read, 60.0)
    await kept.get()
    source.go_on.clear()
    async with asyncio.TaskGroup() as tasks:
        newer = tasks.create_task(kept.get_newer())
        await until(lambda: source.readings == 2)
        assert await kept.get() == 1
        source.go_on.set()
    assert newer.result() == 2


async def test_what_is_not_fresh_any_more_is_read_anew() -> None:
    kept = KeptReading(Source().read, 0.0)
    assert [await kept.get(), await kept.get()] == [1, 2]


async def test_what_was_forgotten_is_read_anew() -> None:
    kept = KeptReading(Source().read, 60.0)
    await kept.get()
    kept.forget()
    assert [await kept.get(), await kept.get()] == [2, 2]


async def test_a_reading_that_was_under_way_then_is_not_kept() -> None:
    source = Source()
    kept = KeptReading(source.read, 60.0)
    source.go_on.clear()
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(kept.get())
        await until(lambda: source.readings == 1)
        kept.forget()
        source.go_on.set()
    assert (asked.result(), await kept.get()) == (1, 2)


async def test_a_reading_that_fails_is_tried_again_by_the_next() -> None:
    faults = [ZeroDivisionError]

    async def read() -> str:
        if faults:
            raise faults.pop()
        return "found"

    kept = KeptReading(read, 60.0)
    with pytest.raises(ZeroDivisionError):
        await kept.get()
    assert await kept.get() == "found"


async def test_a_newer_one_is_read_after_it_was_asked_for_and_kept() -> None:
    kept = KeptReading(Source().read, 60.0)
    assert [await kept.get(), await kept.get_newer(), await kept.get()] == [1, 2, 2]


async def test_who_asks_for_a_newer_one_does_not_get_the_one_that_is_under_way() -> None:
    source = Source()
    kept = KeptReading(source.read, 60.0)
    source.go_on.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kept.get())
        await until(lambda: source.readings == 1)
        asked = [tasks.create_task(kept.get_newer()) for _ in range(5)]
        source.go_on.set()
    assert [one.result() for one in asked] == [2] * 5


async def test_however_often_newer_ones_are_asked_for_they_are_read_with_pauses() -> None:
    source = Source()
    kept = KeptReading(source.read, 60.0)
    began = loop_time()
    for _ in range(4):
        await kept.get_newer()
    assert source.readings == 4
    assert loop_time() - began >= 3 * PAUSE_SECONDS
