import asyncio

from meshnet_worker.transport.tasks import start_task
from tests.worker.waiting import ending_tasks


async def test_work_is_started() -> None:
    started = asyncio.Event()

    async def dial() -> None:
        started.set()

    async with asyncio.TaskGroup() as tasks:
        start_task(tasks, dial())
    assert started.is_set()


async def test_a_worker_that_is_stopping_starts_nothing() -> None:
    async def dial() -> None:
        raise AssertionError

    async with ending_tasks() as tasks:
        pass
    start_task(tasks, dial())
