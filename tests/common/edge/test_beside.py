import asyncio

import pytest

from meshnet_common.edge.beside import beside


async def test_work_begins_beside_the_block_and_ends_with_it() -> None:
    events: list[str] = []
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            events.append("work ended")

    async with beside(work()):
        await begun.wait()
        events.append("block")
    assert events == ["block", "work ended"]


async def test_what_the_block_raises_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with beside(_for_ever()):
            raise ZeroDivisionError


async def test_work_that_is_over_leaves_the_block_alone() -> None:
    async with beside(asyncio.sleep(0)):
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_work_that_fails_ends_the_block() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        async with beside(work()):
            await asyncio.Event().wait()


async def test_a_cancelled_block_cancels_the_work() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def block() -> None:
        async with beside(work()):
            await asyncio.Event().wait()

    task = asyncio.get_running_loop().create_task(block())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def _for_ever() -> None:
    await asyncio.Event().wait()
