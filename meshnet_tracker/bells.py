"""Wakes what waits inside this process, so that nothing has to poll for its own news."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from meshnet_common.ids import WorkerId


class Bell:
    """Wakes one waiting task; a ring that nobody waits for is kept, and many count as one."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    @property
    def is_rung(self) -> bool:
        return self._rung.is_set()

    async def wait(self, seconds: float) -> None:
        """Wait for a ring, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        self._rung.clear()


class Chime:
    """Wakes all tasks that wait; a stroke that nobody waits for is gone."""

    def __init__(self) -> None:
        self._struck = asyncio.Event()

    def strike(self) -> None:
        self._struck.set()
        self._struck = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait for a stroke, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._struck.wait()


class DirectiveBells:
    """Wakes the long polls of Workers when there are Rebalance Directives for them."""

    def __init__(self) -> None:
        self._listeners: dict[WorkerId, set[Bell]] = {}
        self.closed = False

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    @contextmanager
    def listen(self, worker_id: WorkerId) -> Iterator[Bell]:
        """Lend a bell that rings for this Worker; a reconnected Worker may hold two for a while."""
        bell = Bell()
        own = self._listeners.setdefault(worker_id, set())
        own.add(bell)
        try:
            yield bell
        finally:
            own.discard(bell)
            if not own:
                self._listeners.pop(worker_id, None)

    def ring(self, worker_ids: Iterable[WorkerId]) -> None:
        for worker_id in worker_ids:
            for bell in self._listeners.get(worker_id, ()):
                bell.ring()

    def close(self) -> None:
        """Wake everybody for good, so that open polls do not hold up the end of the program."""
        self.closed = True
        self.ring(tuple(self._listeners))
