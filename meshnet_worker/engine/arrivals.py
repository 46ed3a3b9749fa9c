"""Segments that have come, until they are in a Batch; pure.

A segment that wants a token waits beside the others while nobody knows yet which tokens its grammar
allows: no Batch waits for that.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from meshnet_common.protocol.bodies import SEGMENT_FILL
from meshnet_worker.engine.scheduler import Lane, Waiting, WaitingSegments
from meshnet_worker.engine_port import RunSegment


class Arrived(NamedTuple):
    """A segment with its hidden states, if it came with any."""

    command: RunSegment
    payload: bytes


class Arrivals:
    """What waits for a Batch, and what is held back until it may."""

    def __init__(self) -> None:
        self.waiting = WaitingSegments()
        self._arrived: dict[int, Arrived] = {}
        self._held_back: dict[int, list[Arrived]] = {}

    def add(self, lane: Lane, arrived: Arrived) -> None:
        """Let a segment wait for a Batch."""
        command = arrived.command
        is_fill = bool(command.flags & SEGMENT_FILL)
        waiting = self.waiting.add(command.session, lane, command.tokens, is_fill=is_fill)
        self._arrived[waiting.arrival] = arrived

    def hold_back(self, arrived: Arrived) -> None:
        """Keep a segment until its Session is ready."""
        self._held_back.setdefault(arrived.command.session, []).append(arrived)

    def take_ready(self, is_ready: Callable[[int], bool]) -> list[Arrived]:
        """Take out what was held back of Sessions that are ready, in the order of its arrival."""
        ready = [session for session in self._held_back if is_ready(session)]
        return [arrived for session in ready for arrived in self._held_back.pop(session)]

    def next_batch(self, decodes: Callable[[Lane], int]) -> tuple[Sequence[Waiting], list[Arrived]]:
        """Take out what runs next, and what it came with."""
        batch = self.waiting.next_batch(decodes=decodes)
        return batch, [self._arrived.pop(waiting.arrival) for waiting in batch]

    def forget(self, session: int) -> None:
        """Forget all that has not run of a Session."""
        self._held_back.pop(session, None)
        for waiting in self.waiting.forget(session):
            del self._arrived[waiting.arrival]
