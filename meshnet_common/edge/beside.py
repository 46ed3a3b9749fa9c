"""Work that goes on beside a block and ends with it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run some work beside the block; it is cancelled when the block ends.

    What the block raises comes out as it is. If the work fails, the block is cancelled and an
    ExceptionGroup comes out.
    """
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a TaskGroup would wrap it; raised below
            failure = error
        finally:
            task.cancel()
    if failure is not None:
        raise failure
