"""Asks a Worker whether it lives: the one place where the Tracker dials by its own will.

Only URLs that Workers registered are asked, only for `/healthz`, and nothing of the answer but its
status is read or told on. A redirect is no answer.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import aiohttp
import structlog

from meshnet_common.ids import WorkerId
from meshnet_tracker.records import WorkerPlace

PROBE_SECONDS = 1.0
MOST_SECONDS_LATE = 0.5
"""A probe that ended later than that says more about this process than about the Worker."""

MOST_TRIES = 3
DOUBT_SECONDS = 60.0
"""So long heartbeats alone do not bring a Worker back; Peers may reach it where we cannot."""

MAX_HEADER_BYTES = 4096
READ_AHEAD_BYTES = 4096

_logger = structlog.get_logger()


@dataclass(slots=True)
class _Probe:
    """One probe under way, for all who ask for it meanwhile."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    askers: int = 0
    answered: bool | None = None


class WorkerProbes:
    """The probes under way, several at once about one Worker being one; and who failed its last."""

    def __init__(self) -> None:
        self._under_way: dict[WorkerPlace, _Probe] = {}
        self._doubted: dict[WorkerId, tuple[WorkerPlace, float]] = {}

    def doubt(self, place: WorkerPlace, now: float) -> None:
        """Let this Worker's own words not count for a while, unless it answers there."""
        self._doubted[place.worker_id] = place, now + DOUBT_SECONDS

    def trust(self, worker_id: WorkerId) -> None:
        """Take a Worker at its word again, since it begins anew."""
        self._doubted.pop(worker_id, None)

    async def reaches(self, worker_id: WorkerId, now: float) -> bool:
        """Tell whether a Worker answers, if there is any doubt."""
        doubted = self._doubted.get(worker_id)
        if doubted is None:
            return True
        place, until = doubted
        if now < until and not await self.answers(place):
            return False
        self.trust(worker_id)
        return True

    async def silent(self, places: Iterable[WorkerPlace]) -> tuple[WorkerPlace, ...]:
        """Ask all of them at once; return those that do not answer well within a second."""
        async with asyncio.TaskGroup() as tasks:
            asked = [(place, tasks.create_task(self.answers(place))) for place in places]
        return tuple(place for place, answer in asked if not answer.result())

    async def answers(self, place: WorkerPlace) -> bool:
        """Tell whether a Worker says within a second that it is well."""
        probe = self._under_way.setdefault(place, _Probe())
        probe.askers += 1
        try:
            # Whoever holds the turn may give up; then the next one asks instead.
            async with probe.turn:
                if probe.answered is None:
                    probe.answered = await _is_well(place)
                return probe.answered
        finally:
            probe.askers -= 1
            if not probe.askers:
                del self._under_way[place]


async def _is_well(place: WorkerPlace) -> bool:
    now = asyncio.get_running_loop().time
    for _ in range(MOST_TRIES):
        began = now()
        if await _answers_well(place):
            return True
        if now() - began < PROBE_SECONDS + MOST_SECONDS_LATE:
            break
    return False


async def _answers_well(place: WorkerPlace) -> bool:
    try:
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=PROBE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=READ_AHEAD_BYTES,
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
            ) as session,
            session.get(f"{place.url.rstrip('/')}/healthz", allow_redirects=False) as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        _logger.info("worker did not answer", worker=place.worker_id, reason=type(error).__name__)
        return False
