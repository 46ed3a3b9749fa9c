"""Looks after all open links: pings each one every second, and hangs up on a silent Peer."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from meshnet_common.protocol.bodies import PingBody, PongBody, to_frame
from meshnet_common.protocol.frames import encode_frame
from meshnet_worker.transport.liveness import LOOKS_IN_A_ROUND, Deadlines, Pulse, Signs
from meshnet_worker.transport.outbox import Outbox
from meshnet_worker.transport.round_trips import RoundTrips
from meshnet_worker.transport.sockets import WebSocket, seconds_since_data
from meshnet_worker.transport.tasks import start_task


class StepAges(NamedTuple):
    """What a pong says of this Worker's engine."""

    oldest_seconds: float
    overdue_seconds: float


@dataclass(slots=True, eq=False)
class OpenLink:
    """One socket that is open, and what is sent and heard on it."""

    websocket: WebSocket
    outbox: Outbox
    signs: Signs
    trips: RoundTrips
    on_silent: Callable[[str], None]

    def ping(self, nonce: int, now: float) -> None:
        self.trips.sent(nonce, now)
        self.outbox.put_sign(encode_frame(to_frame(PingBody(nonce=nonce))), nonce)

    def pong(self, nonce: int, ages: StepAges) -> None:
        """Answer on the link that asked: each has its own life."""
        body = PongBody(
            nonce=nonce,
            oldest_step_seconds=ages.oldest_seconds,
            overdue_seconds=ages.overdue_seconds,
        )
        self.outbox.put_sign(encode_frame(to_frame(body)))


class Watch:
    """Looks after links while any is open."""

    def __init__(
        self, deadlines: Deadlines, tasks: asyncio.TaskGroup, on_round: Callable[[], None]
    ) -> None:
        self._deadlines = deadlines
        self._tasks = tasks
        self._on_round = on_round
        self._links: set[OpenLink] = set()
        self._nonces = count(1)
        self._is_running = False

    def __iter__(self) -> Iterator[OpenLink]:
        return iter(tuple(self._links))

    def begin(self, link: OpenLink) -> None:
        """Look after a link from now on."""
        self._links.add(link)
        if not self._is_running:
            self._is_running = True
            start_task(self._tasks, self._run())

    def end(self, link: OpenLink) -> None:
        self._links.discard(link)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pulse = Pulse(loop.time(), self._deadlines)
        while self._links:
            for _ in range(LOOKS_IN_A_ROUND):
                await asyncio.sleep(self._deadlines.look_seconds)
                self._look(pulse, loop.time())
            self._on_round()
        self._is_running = False

    def _look(self, pulse: Pulse, now: float) -> None:
        paused_seconds = pulse.beat(now)
        for link in self:
            link.signs.excuse(paused_seconds, now)
            if link.signs.is_silent(now):
                link.signs.hear(now - seconds_since_data(link.websocket))
            if link.signs.is_silent(now):
                link.on_silent(f"silent for {self._deadlines.silence_seconds:.0f} s")
            elif link.signs.is_to_be_pinged(now):
                link.ping(next(self._nonces), now)
