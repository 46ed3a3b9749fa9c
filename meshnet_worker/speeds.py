"""How fast this Worker is, as far as it has measured: its Layers, and its link to the Tracker."""

import os
import time
from asyncio import timeout
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from meshnet_common.errors import MeshnetError
from meshnet_worker.engine_port import BATCH_TOKENS

LINK_SECONDS = 0.8
"""The measurement ends by then, with what it has found."""
SMALLEST_BYTES = 64 << 10
LARGEST_BYTES = 1 << 20
TELLING_SECONDS = 0.2
"""A body that took this long tells the speed; a larger one need not be sent."""

LEAST_ARRIVED_BYTES = 1 << 20
"""Fewer bytes do not tell how fast weights arrive."""

SLOWDOWN = 4
"""How much slower than measured a busy machine may be."""
UNMEASURED_BATCH_SECONDS = 10.0
"""What a large Batch may take before its Layers are measured, or where they cannot be."""

Send = Callable[[bytes], Awaitable[object]]


@dataclass(slots=True)
class Speeds:
    """Zeros are not measured; `speeds_of` names the model whose Layers the first two are of."""

    decode_tokens_per_second_per_layer: float = 0.0
    prefill_tokens_per_second_per_layer: float = 0.0
    speeds_of: str = ""
    link_bytes_per_second: float = 0.0
    download_bytes_per_second: float = 0.0

    def slow_batch_seconds(self, layers: int) -> float:
        """What a large Batch may take at worst: slowness is no fault."""
        speed = self.prefill_tokens_per_second_per_layer
        return SLOWDOWN * BATCH_TOKENS * layers / speed if speed else UNMEASURED_BATCH_SECONDS


class Arrival:
    """How fast the weights of one load arrive."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._began_bytes: int | None = None
        self.bytes_per_second = 0.0
        """0 where there was too little to tell."""

    def hear(self, bytes_done: int, now: float) -> None:
        """Take up how much is here; what was there at first has not arrived."""
        if self._began_bytes is None:
            self._began, self._began_bytes = now, bytes_done
            return
        arrived, seconds = bytes_done - self._began_bytes, now - self._began
        if arrived >= LEAST_ARRIVED_BYTES and seconds > 0:
            self.bytes_per_second = arrived / seconds


async def link_bytes_per_second(send: Send) -> float:
    """Measure how fast bodies are sent, under a second; 0 where nobody takes them.

    What an empty body takes is the round trip, which is no part of the speed.
    """
    found = 0.0
    with suppress(MeshnetError, TimeoutError):
        async with timeout(LINK_SECONDS):
            await send(b"")  # opens the connection
            round_trip = await _seconds(send, 0)
            size = SMALLEST_BYTES
            while size <= LARGEST_BYTES:
                seconds = await _seconds(send, size)
                found = size / max(seconds - round_trip, seconds / 10)
                if seconds >= TELLING_SECONDS:
                    break
                size *= 4
    return found


async def _seconds(send: Send, size: int) -> float:
    # Random, since what stands between may compress.
    body = os.urandom(size)
    started = time.perf_counter()
    await send(body)
    return time.perf_counter() - started
