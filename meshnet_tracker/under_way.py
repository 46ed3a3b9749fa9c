"""Which answers are being read from which Head Worker, so that all hear of its loss at once.

One whose Head Worker falls silent finds out by itself, but later than the first that did.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from meshnet_common.errors import MeshnetError
from meshnet_common.ids import WorkerId


class HeadLostError(MeshnetError):
    """The Head Worker of this answer was lost."""


class AnswersUnderWay:
    """The answers that this Tracker passes on now."""

    def __init__(self) -> None:
        self._by_head: dict[WorkerId, set[asyncio.Timeout]] = {}

    @asynccontextmanager
    async def of_head(self, head: WorkerId) -> AsyncIterator[None]:
        """Read one answer inside the block; raises HeadLostError once its head is cut."""
        patience = asyncio.timeout(None)
        try:
            async with patience:
                answers = self._by_head.setdefault(head, set())
                answers.add(patience)
                try:
                    yield
                finally:
                    answers.discard(patience)
                    if not answers:
                        self._by_head.pop(head, None)
        except TimeoutError as error:
            if not patience.expired():
                raise
            raise HeadLostError(f"Worker {head} was found lost.") from error

    def cut(self, head: WorkerId) -> None:
        """End every answer from a lost Head Worker."""
        now = asyncio.get_running_loop().time()
        for patience in self._by_head.get(head, ()):
            patience.reschedule(now)
