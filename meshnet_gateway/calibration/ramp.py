"""Ramps the concurrency that one Endpoint is offered, and measures what it makes of each level."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import aiohttp
import msgspec
from aiohttp import hdrs

from meshnet_common.edge.beside import beside
from meshnet_common.edge.clock import Clock
from meshnet_common.edge.forwarding import UpstreamUnreachableError
from meshnet_gateway.calibration.knee import Level, next_concurrency
from meshnet_gateway.calibration.probes import (
    URL_PATHS,
    Sample,
    level_of,
    request_body,
    units_of,
)
from meshnet_gateway.config.settings import Endpoint, Kind
from meshnet_gateway.limits.upstream_metrics import read_load
from meshnet_gateway.pages import get_page

ANSWER_SECONDS = 300.0
LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and for how long each level."""

    model: str
    kind: Kind
    endpoint: Endpoint
    level_seconds: float = 10.0
    most: int = 256
    answer_tokens: int = 64


class Ramp:
    """One calibration; every level is a closed loop of that many requests."""

    def __init__(self, session: aiohttp.ClientSession, clock: Clock, plan: Plan) -> None:
        self._session = session
        self._clock = clock
        self._plan = plan
        self._numbers = count(1)
        key = plan.endpoint.api_key
        self._headers: dict[str, str] = {hdrs.CONTENT_TYPE: "application/json"}
        if key is not None:
            self._headers[hdrs.AUTHORIZATION] = key.bearer

    async def run(self, on_level: Callable[[Level], None]) -> list[Level]:
        """Measure levels until the knee is found; the first request warms up and is not counted."""
        await self._ask()
        levels: list[Level] = []
        while (concurrency := next_concurrency(levels, self._plan.most)) is not None:
            levels.append(await self.measure(concurrency))
            on_level(levels[-1])
        return levels

    async def measure(self, concurrency: int) -> Level:
        """Keep so many requests in flight for as long as a level lasts."""
        seen: list[Sample | None] = []
        waits: list[int] = []
        until = self._clock.now() + self._plan.level_seconds

        async def go_on() -> None:
            sample = await self._ask()
            seen.append(sample)
            while sample is not None and self._clock.now() < until:
                sample = await self._ask()
                seen.append(sample)

        async with beside(self._look(waits)), asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(go_on())
        samples = [sample for sample in seen if sample is not None]
        return level_of(concurrency, samples, len(seen) - len(samples), max(waits, default=None))

    async def _ask(self) -> Sample | None:
        """Send one request; returns None where it failed."""
        plan = self._plan
        body = request_body(plan.model, plan.kind, next(self._numbers), plan.answer_tokens)
        url = plan.endpoint.base_url + URL_PATHS[plan.kind]
        began = self._clock.now()
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                self._session.post(url, data=body, headers=self._headers) as response,
            ):
                answer = await response.read()
                response.raise_for_status()
            return Sample(self._clock.now() - began, units_of(plan.kind, answer))
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
            return None

    async def _look(self, waits: list[int]) -> None:
        """Ask the Endpoint now and then how many requests wait in it, if it has a page for that."""
        url = self._plan.endpoint.metrics_url
        while url is not None:
            try:
                page = await get_page(self._session, url, self._headers)
                load = read_load(page.body.decode(errors="replace"), self._plan.model)
            except (UpstreamUnreachableError, ValueError):
                load = None
            if load is not None and load.waiting is not None:
                waits.append(load.waiting)
            await asyncio.sleep(LOOK_SECONDS)
