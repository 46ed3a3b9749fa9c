"""The clocks behind a seam, so that tests decide what time it is."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time in seconds, since the epoch unless it says otherwise."""

    def now(self) -> float: ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        return time.time()  # noqa: TID251 - the one place where the wall clock is read


class SteadyClock:
    """Seconds since any moment, that nobody sets: for how long something takes, never for when."""

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


def loop_time() -> float:
    """The running event loop's time, in seconds: what its timeouts and timers go by."""
    return asyncio.get_running_loop().time()
