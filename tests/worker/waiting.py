"""Waiting for something to become true, with a deadline and without sleeping."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

SECONDS = 10.0


class Changes:
    """Tells those who wait that something may have become true."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def tell(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        """Wait until a condition holds, looked at after each change; raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


def start_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task that its starter cancels."""
    return asyncio.get_running_loop().create_task(work)


class _EndedError(Exception):
    """The block is over."""


@asynccontextmanager
async def ending_tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup whose tasks are cancelled when the block ends."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
            _end()
    except* _EndedError:
        pass


def _end() -> None:
    # An exception is how a TaskGroup is told to cancel its tasks.
    raise _EndedError
