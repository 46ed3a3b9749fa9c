import asyncio

import pytest

from meshnet_tracker.kept_reading import KeptReading
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
