"""What waits to be sent, and whose turn it is.

A prompt of one Session must not hold up a Decode Step of another: bulk frames leave one at a time,
and only while no interactive frame is about to leave on any link. Nor must it hold up the prompt of
another for longer than a frame takes: bulk frames to one Peer leave by turns, Session for Session.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from meshnet_common.errors import MeshnetError
from meshnet_worker.transport.turns import Turns
from meshnet_worker.transport.underway import Lowest, Part, Parts, Underway

QUEUE_FRAMES = 1024
QUEUE_BYTES = 512 * 1024 * 1024
"""A long prompt that is sent again for a replaced Hop fits."""
MOST_SIGNS = 16
"""Pings and pongs of one link; a Peer that asks more often than it reads gets fewer answers."""

Send = Callable[[bytes], Awaitable[None]]


class OutboxFullError(MeshnetError):
    """The Peer does not keep up."""


class _Sign(NamedTuple):
    data: bytes
    asks: int | None
    """The nonce of a ping."""


class _Waiting(NamedTuple):
    data: bytes
    parts: Parts
    since: float

    def is_outdated(self, newest: Part) -> bool:
        """Whether nobody needs it any more: all of it is of that Session, below that epoch."""
        return bool(self.parts) and all(
            part.session_id == newest.session_id and part.epoch < newest.epoch
            for part in self.parts
        )


class Outbox:
    """The bounded queue of one link; signs of life overtake what waits."""

    def __init__(self) -> None:
        self._signs: deque[_Sign] = deque()
        self._frames: deque[_Waiting] = deque()
        self._frame_bytes = 0
        self._lowest = Lowest()
        self._turns = Turns()
        self._underway = Underway()
        self._filled = asyncio.Event()
        self.is_held_up = False
        """Whether the socket takes nothing more at the moment."""

    def __len__(self) -> int:
        return len(self._signs) + len(self._frames)

    @property
    def is_leaving(self) -> bool:
        """Whether something waits that the socket would take."""
        return len(self) > 0 and not self.is_held_up

    def put(self, data: bytes, parts: Parts = (), now: float = 0.0) -> None:
        """Queue a frame, with the Sessions whose activations it has; raises OutboxFullError."""
        if len(self._frames) >= QUEUE_FRAMES or self._frame_bytes + len(data) > QUEUE_BYTES:
            raise OutboxFullError(f"{len(self._frames)} frames wait to be sent.")
        self._frames.append(_Waiting(data, parts, now))
        self._lowest.add(parts)
        self._frame_bytes += len(data)
        self._filled.set()

    def put_sign(self, data: bytes, asks: int | None = None) -> None:
        """Queue a ping or pong before all frames, unless too many wait already."""
        if len(self._signs) < MOST_SIGNS:
            self._signs.append(_Sign(data, asks))
            self._filled.set()

    def purge(self, newest: Part) -> None:
        """Drop the activations of a Session that wait and are of an epoch below this one."""
        if not self._lowest.may_be_below(newest):
            return
        waiting, self._frames = self._frames, deque()
        for frame in waiting:
            if frame.is_outdated(newest):
                self._frame_bytes -= len(frame.data)
                self._lowest.remove(frame.parts)
            else:
                self._frames.append(frame)
        self._lowest.lift(newest)
        self._note_whether_filled()

    def answer(self, nonce: int) -> None:
        """The Peer has answered this ping."""
        self._underway.answer(nonce)

    def sessions(self, before: float) -> Iterator[str]:
        """The Sessions whose activations wait or are on their way since before then."""
        yield from self._underway.sessions(before)
        for frame in self._frames:
            if frame.since <= before:
                yield from (part.session_id for part in frame.parts)

    async def filled(self) -> None:
        """Wait until something is queued."""
        while not len(self):
            await self._filled.wait()

    def pop(self) -> bytes:
        """Take what was queued first, signs before frames; something must be queued."""
        return self._pop_sign() if self._signs else self._pop_frame(0)

    def pop_by_turns(self) -> bytes:
        """Take the frame of the Session that has waited longest for its turn, after all signs."""
        if self._signs:
            return self._pop_sign()
        return self._pop_frame(self._turns.next(frame.parts for frame in self._frames))

    def _pop_sign(self) -> bytes:
        sign = self._signs.popleft()
        if sign.asks is not None:
            self._underway.ask(sign.asks)
        self._note_whether_filled()
        return sign.data

    def _pop_frame(self, place: int) -> bytes:
        frame = self._frames[place]
        del self._frames[place]
        self._frame_bytes -= len(frame.data)
        self._lowest.remove(frame.parts)
        self._underway.write(frame.parts, frame.since)
        self._note_whether_filled()
        return frame.data

    def _note_whether_filled(self) -> None:
        if not len(self):
            self._filled.clear()


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
            if not len(outbox):
                # Purged meanwhile.
                continue
            await send(outbox.pop_by_turns())
            # A socket that takes everything at once would let nobody else run.
            await asyncio.sleep(0)

    async def _quiet(self) -> None:
        while any(outbox.is_leaving for outbox in self._interactive):
            self._changed.clear()
            await self._changed.wait()
