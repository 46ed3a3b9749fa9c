"""One request to one Head Worker, and its answer as blocks.

A Head Worker that is well is never silent for long (`meshnet_common.protocol.resume`), so silence
is a fault, like a broken connection, junk, or an end before the end.
"""

import asyncio
import io
from collections.abc import AsyncGenerator

import aiohttp

from meshnet_common.edge.clock import loop_time
from meshnet_common.edge.forwarding import (
    Target,
    UpstreamUnreachableError,
    WholeAnswer,
    read_whole,
)
from meshnet_common.errors import MeshnetError
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.notes import HeadStreamError
from meshnet_common.protocol.resume import Block, HeadStream
from meshnet_tracker.under_way import AnswersUnderWay, HeadLostError

SILENCE_SECONDS = 3.0
LEAST_BYTES_PER_SECOND = 128 << 10
"""Of a request on its way."""
CONNECT_SHARE = 0.8
NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""What is raised before a Worker has got any of a request."""
LATE_SECONDS = 0.5
"""A deadline that is noticed so much too late was missed by this process itself."""


class HeadFaultError(MeshnetError):
    """The Head Worker has failed."""


class HeadUnreachedError(HeadFaultError):
    """The Head Worker could not be connected to, and knows nothing of the request."""


class HeadCutOffError(HeadFaultError):
    """The Head Worker is known to be lost."""


class HeadAnsweredError(MeshnetError):
    """The Head Worker has answered with something else than a stream."""

    def __init__(self, answer: WholeAnswer) -> None:
        super().__init__(f"HTTP {answer.status}.")
        self.answer = answer


class HeadCall:
    """Asks Head Workers; what this Tracker's watcher finds lost is cut off."""

    def __init__(self, upstream: aiohttp.ClientSession, answers: AnswersUnderWay) -> None:
        self._upstream = upstream
        self._answers = answers

    async def blocks(
        self, head: WorkerId, target: Target, stream: HeadStream
    ) -> AsyncGenerator[Block, None]:
        """POST the target and yield its answer; raises HeadAnsweredError or HeadFaultError."""
        try:
            async with await self._post(head, target) as upstream:
                if upstream.status >= 400:
                    raise HeadAnsweredError(await self._whole(head, upstream))
                if upstream.status != 200 or upstream.content_type != "text/event-stream":
                    raise HeadFaultError("It does not stream.")
                while data := await self._read(head, upstream):
                    for block in stream.feed(data):
                        yield block
        except HeadLostError as error:
            raise HeadCutOffError(str(error)) from error
        except (HeadStreamError, UpstreamUnreachableError) as error:
            raise HeadFaultError(str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise HeadFaultError(f"{type(error).__name__}.") from error

    async def _post(self, head: WorkerId, target: Target) -> aiohttp.ClientResponse:
        # What is on its way in buffers cannot be seen, so a long body has time by its length.
        patience = SILENCE_SECONDS + len(target.body) / LEAST_BYTES_PER_SECOND
        # Sooner than that is over, so that it is known whether it has got any of the request.
        connect_seconds = CONNECT_SHARE * SILENCE_SECONDS
        try:
            async with self._answers.of_head(head), asyncio.timeout(patience):
                return await self._upstream.post(
                    target.url,
                    data=io.BytesIO(target.body),
                    headers=target.headers,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
                )
        except NOT_CONNECTED as error:
            raise HeadUnreachedError(f"{type(error).__name__}.") from error
        except TimeoutError as error:
            raise HeadFaultError(f"It did not answer for {patience:.0f} s.") from error

    async def _whole(self, head: WorkerId, upstream: aiohttp.ClientResponse) -> WholeAnswer:
        try:
            async with self._answers.of_head(head), asyncio.timeout(SILENCE_SECONDS):
                return await read_whole(upstream)
        except TimeoutError as error:
            raise HeadFaultError("Its answer has no end.") from error

    async def _read(self, head: WorkerId, upstream: aiohttp.ClientResponse) -> bytes:
        # Only here an answer may be cut off: what a client was sent is always on record.
        while True:
            due = loop_time() + SILENCE_SECONDS
            try:
                async with self._answers.of_head(head), asyncio.timeout_at(due):
                    return await upstream.content.readany()
            except TimeoutError as error:
                if loop_time() - due < LATE_SECONDS:
                    facts = f"It was silent for {SILENCE_SECONDS:.0f} s."
                    raise HeadFaultError(facts) from error
