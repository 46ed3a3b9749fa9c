"""What waits to be sent, and whose turn it is.

A prompt of one Session must not hold up a Decode Step of another: bulk frames leave one at a time,
and only while no interactive frame is about to leave on any link.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from meshnet_common.errors import MeshnetError

QUEUE_FRAMES = 1024
QUEUE_BYTES = 512 * 1024 * 1024
"""A long prompt that is sent again for a replaced Hop fits."""
MOST_SIGNS = 16
"""Pings and pongs of one link; a Peer that asks more often than it reads gets fewer answers."""

Send = Callable[[bytes], Awaitable[None]]


class OutboxFullError(MeshnetError):
    """The Peer does not keep up."""


class Outbox:
    """The bounded queue of one link; signs of life overtake what waits."""

    def __init__(self) -> None:
        self._signs: deque[bytes] = deque()
        self._frames: deque[bytes] = deque()
        self._frame_bytes = 0
        self._filled = asyncio.Event()
        self.is_held_up = False
        """Whether the socket takes nothing more at the moment."""

    def __len__(self) -> int:
        return len(self._signs) + len(self._frames)

    @property
    def is_leaving(self) -> bool:
        """Whether something waits that the socket would take."""
        return len(self) > 0 and not self.is_held_up

    def put(self, data: bytes) -> None:
        """Queue a frame; raises OutboxFullError."""
        if len(self._frames) >= QUEUE_FRAMES or self._frame_bytes + len(data) > QUEUE_BYTES:
            raise OutboxFullError(f"{len(self._frames)} frames wait to be sent.")
        self._frames.append(data)
        self._frame_bytes += len(data)
        self._filled.set()

    def put_sign(self, data: bytes) -> None:
        """Queue a ping or pong before all frames, unless too many wait already."""
        if len(self._signs) < MOST_SIGNS:
            self._signs.append(data)
            self._filled.set()

    async def filled(self) -> None:
        """Wait until something is queued."""
        await self._filled.wait()

    def pop(self) -> bytes:
        """Take what is to be sent next; something must be queued."""
        if self._signs:
            data = self._signs.popleft()
        else:
            data = self._frames.popleft()
            self._frame_bytes -= len(data)
        if not len(self):
            self._filled.clear()
        return data


class Sending:
    """Sends what is queued on all links of a Worker, each class in its way."""

    def __init__(self) -> None:
        self._interactive: set[Outbox] = set()
        self._changed = asyncio.Event()

    async def interactive(self, outbox: Outbox, send: Send) -> None:
        """Send what is queued as soon as the socket takes it, until cancelled."""
        self._interactive.add(outbox)
        try:
            while True:
                await outbox.filled()
                data = outbox.pop()
                outbox.is_held_up = True
                self._changed.set()
                await send(data)
                outbox.is_held_up = False
        finally:
            self._interactive.discard(outbox)
            self._changed.set()

    async def bulk(self, outbox: Outbox, send: Send) -> None:
        """Send one frame after the other while nothing interactive wants to leave."""
        while True:
            await outbox.filled()
            await self._quiet()
            await send(outbox.pop())
            # A socket that takes everything at once would let nobody else run.
            await asyncio.sleep(0)

    async def _quiet(self) -> None:
        while any(outbox.is_leaving for outbox in self._interactive):
            self._changed.clear()
            await self._changed.wait()
