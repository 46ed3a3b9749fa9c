"""The tokens of one answer, as the Sessions of its choices give them.

Whoever reads is never what the next Decode Step waits for: the queue has room for all that comes.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from meshnet_common.edge.clock import loop_time
from meshnet_common.errors import MeshnetError
from meshnet_common.protocol.bodies import ChosenToken
from meshnet_common.protocol.sampling import Sampling
from meshnet_worker.generation import Generation
from meshnet_worker.head_session import HeadSession, News
from meshnet_worker.tickets import SignedRoute

SIGN_SECONDS = 1.0
"""Who waits for a token hears this often that its Sessions live."""
OTHER_NEWS = 3
"""Of a Session, besides its tokens."""


class Asked(NamedTuple):
    """One Session of an answer: where it runs, what it is to generate, and how."""

    route: SignedRoute
    generation: Generation
    sampling: Sampling


class Tokens:
    """Yields tokens as they come, those of each Session in order, and None while none come."""

    def __init__(
        self,
        asked: Sequence[Asked],
        is_stuck: Callable[[], bool],
        leave: Callable[[HeadSession], None],
    ) -> None:
        self._is_stuck = is_stuck
        self._leave = leave
        self._news: asyncio.Queue[News] = asyncio.Queue(
            sum(one.generation.max_new_tokens + OTHER_NEWS for one in asked)
        )
        self._open = {one.generation.session_id: self._session(one) for one in asked}
        for session in self.sessions:
            session.answer = self.sessions
        self._heard = {key: len(one.generation.chosen) for key, one in self._open.items()}

    @property
    def sessions(self) -> tuple[HeadSession, ...]:
        """Those that are not left."""
        return tuple(self._open.values())

    def leave(self, session_id: str) -> None:
        """Close one Session, while the others go on."""
        session = self._open.pop(session_id, None)
        if session is not None:
            self._leave(session)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChosenToken | None:
        while not all(map(self._is_read, self._open.values())):
            try:
                async with asyncio.timeout(SIGN_SECONDS):
                    session, what = await self._news.get()
            except TimeoutError:
                if not self._is_stuck():
                    return None
                continue
            if session.generation.session_id not in self._open:
                continue
            if isinstance(what, MeshnetError):
                raise what
            if what is not None:
                self._heard[session.generation.session_id] += 1
                return what
        raise StopAsyncIteration

    def _session(self, asked: Asked) -> HeadSession:
        return HeadSession(
            route=asked.route,
            generation=asked.generation,
            sampling=asked.sampling,
            news=self._news,
            heard_at=loop_time(),
        )

    def _is_read(self, session: HeadSession) -> bool:
        generation = session.generation
        heard = self._heard[generation.session_id]
        return generation.finished and heard == len(generation.chosen)
