"""Lets many callers share one piece of work, such as a transaction, when they come at once.

Whoever comes to an idle one is served at once; who comes shortly after waits for the next turn,
together with all others that came meanwhile. Nobody is answered before the work is done. The longer
a turn takes, the more share the next one, so that what turns cost by themselves stays bearable.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

PAUSE_SECONDS = 0.02
MOST_WORKING_SHARE = 0.5
"""The rest of the time is paused, from the beginning of one turn to that of the next."""

MOST_PAUSE_SECONDS = 0.1
MOST_AT_ONCE = 500

T = TypeVar("T")
R = TypeVar("R")


class Batches(Generic[T, R]):
    """Collects what callers submit; `work` answers one result for each, in their order."""

    def __init__(
        self,
        work: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        pause_seconds: float = PAUSE_SECONDS,
        most_at_once: int = MOST_AT_ONCE,
    ) -> None:
        self._work = work
        self._pause_seconds = pause_seconds
        self._most_at_once = most_at_once
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._next_at = 0.0
        self._runner: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> R:
        """Return the item's result; raises what the work raised, which then all of its callers get.

        A caller that gives up does not stop the work for the others.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future))
        if self._runner is None:
            self._runner = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time
        try:
            while self._waiting:
                await asyncio.sleep(max(0.0, self._next_at - now()))
                began = now()
                await self._take_turn()
                worked = min((now() - began) / MOST_WORKING_SHARE, MOST_PAUSE_SECONDS)
                self._next_at = began + max(self._pause_seconds, worked)
        finally:
            self._runner = None
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()

    async def _take_turn(self) -> None:
        count = min(len(self._waiting), self._most_at_once)
        turn = [self._waiting.popleft() for _ in range(count)]
        turn = [(item, future) for item, future in turn if not future.done()]
        if not turn:
            return
        try:
            results = await self._work([item for item, _ in turn])
        except BaseException as error:
            _fail([future for _, future in turn], error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), result in zip(turn, results, strict=True):
            if not future.done():
                future.set_result(result)


def _fail(futures: Iterable[asyncio.Future[R]], error: BaseException) -> None:
    for future in futures:
        if future.done():
            continue
        if isinstance(error, Exception):
            future.set_exception(error)
        else:
            # The Tracker ends.
            future.cancel()
