"""A server with a known knee, simulated event by event.

Up to the knee every request is served at full speed. Beyond it all share what there is, as a
batching server does it, or the last ones wait for a place, as a server with fixed places does it.
"""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Protocol

from meshnet_gateway.limits.pace import ChatPace

PREFILL_SECONDS = 0.001
DECODE_SECONDS = 0.01


class Limit(Protocol):
    """What is tried: ours, or one of the published ones."""

    @property
    def limit(self) -> int: ...

    def observe(self, pace: ChatPace, in_flight: int, now: float, /) -> None: ...


@dataclass(eq=False)
class Request:
    """One request; its work is seconds of a server that has nothing else to do."""

    prompt_tokens: int
    answer_tokens: int
    sent: float
    prefill_work: float
    decode_work: float
    first: float | None = None


@dataclass
class Load:
    """What clients ask for: as much as the limit lets through, up to `in_flight`."""

    in_flight: int = 10**6
    prompt_tokens: tuple[int, int] = (100, 300)
    answer_tokens: tuple[int, int] = (32, 96)
    noise: float = 0.05
    """Spread of the work for each token, from request to request."""


class Simulator:
    """Sends as much as the limit allows to a server and shows the limit what comes of it."""

    def __init__(self, limit: Limit, knee: int, load: Load, *, shares: bool, seed: int = 1) -> None:
        self.limit = limit
        self.knee = knee
        self.load = load
        self.now = 0.0
        self.in_flight = 0
        self._shares = shares
        self._random = Random(seed)
        self._waiting: deque[Request] = deque()
        self._running = 0
        # Work done so far for each of those that run: all get on equally fast.
        self._work = 0.0
        self._due: list[tuple[float, int, Request]] = []
        self._count = 0

    def answer_one(self) -> None:
        """Go on until the next answer has come."""
        while not self._step():
            pass

    def _step(self) -> bool:
        while self.in_flight < min(self.limit.limit, self.load.in_flight):
            self._send()
        work, _, request = heappop(self._due)
        self.now += (work - self._work) / self._speed()
        self._work = work
        if request.first is None:
            request.first = self.now
            self._schedule(request, request.decode_work)
            return False
        self._running -= 1
        self._admit()
        first, last = request.first - request.sent, self.now - request.sent
        pace = ChatPace(request.prompt_tokens, request.answer_tokens, first, last)
        self.limit.observe(pace, self.in_flight, self.now)
        self.in_flight -= 1
        return True

    def _send(self) -> None:
        prompt = self._random.randint(*self.load.prompt_tokens)
        answer = self._random.randint(*self.load.answer_tokens)
        noise = self._random.lognormvariate(0, self.load.noise)
        prefill, decode = prompt * PREFILL_SECONDS, (answer - 1) * DECODE_SECONDS
        self._waiting.append(Request(prompt, answer, self.now, prefill * noise, decode * noise))
        self.in_flight += 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and (self._shares or self._running < self.knee):
            request = self._waiting.popleft()
            self._running += 1
            self._schedule(request, request.prefill_work)

    def _schedule(self, request: Request, work: float) -> None:
        self._count += 1
        heappush(self._due, (self._work + work, self._count, request))

    def _speed(self) -> float:
        return min(1.0, self.knee / self._running) if self._shares else 1.0
