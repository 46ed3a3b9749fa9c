"""Counts what is in flight at each Head Worker, and sends a request through the best of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import aiohttp
import structlog
from aiohttp import web

from meshnet_common.edge.clock import Clock
from meshnet_common.edge.forwarding import (
    ForwardedAnswer,
    Target,
    UpstreamError,
    UpstreamUnreachableError,
)
from meshnet_gateway.routing import HeadLoad, order_heads

MAX_ATTEMPTS = 3

_logger = structlog.get_logger()


class HeadWorkerPool:
    """All Head Workers that this Gateway has sent requests to."""

    def __init__(self, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._loads: dict[str, HeadLoad] = {}
        self._turns = count(1)

    def load_of(self, head: str) -> HeadLoad:
        return self._loads.get(head, HeadLoad())

    async def forward(
        self, answer: ForwardedAnswer, heads: tuple[str, ...], asked: Target
    ) -> web.StreamResponse:
        """Answer a request through one of these heads, the next one if it fails early.

        The URL of `asked` is the path below each head's own.
        """
        last = UpstreamError()
        for head in order_heads(heads, self._loads, self._clock.now())[:MAX_ATTEMPTS]:
            try:
                with self._in_flight(head):
                    target = replace(asked, url=head + asked.url)
                    return await answer.forward(self._session, target)
            except UpstreamError as error:
                last = error
                self._note_failure(head, error)
        return await answer.give_up(last)

    def _note_failure(self, head: str, error: UpstreamError) -> None:
        _logger.warning("head worker failed", head=head, reason=str(error))
        # One that refuses is alive, and its load may be over in a moment: it need not cool.
        if isinstance(error, UpstreamUnreachableError):
            self._loads[head] = self.load_of(head).unreachable(self._clock.now())

    @contextmanager
    def _in_flight(self, head: str) -> Iterator[None]:
        self._loads[head] = self.load_of(head).begun(next(self._turns))
        try:
            yield
        finally:
            self._loads[head] = self.load_of(head).ended()
