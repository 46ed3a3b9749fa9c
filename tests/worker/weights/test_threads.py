import asyncio
import threading

import pytest

from meshnet_worker.weights.threads import in_thread
from tests.worker.waiting import SECONDS


async def test_a_result_comes_from_another_thread() -> None:
    assert await in_thread(threading.get_ident) != threading.get_ident()


async def test_a_cancellation_waits_for_the_work_that_has_begun() -> None:
    began, may_end, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(began.set)
        may_end.wait(SECONDS)
        ended.set()

    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(in_thread(work))
        await began.wait()
        waiting.cancel()
        loop.call_later(0.01, may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert ended.is_set()
