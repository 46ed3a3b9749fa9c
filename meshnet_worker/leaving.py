"""How a Worker leaves: it takes nothing new, hands over or finishes what it runs, says goodbye.

Handing over is failover without a fault: the Head Workers of its Sessions move them to other
Routes, and answers of which it is the Head Worker itself go on at another one. What nobody can take
over is finished here, as long as the grace period lasts.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import structlog

from meshnet_worker.handing_over import HandingOver
from meshnet_worker.hops import Hops
from meshnet_worker.sessions import SessionTable
from meshnet_worker.shards import ShardTable
from meshnet_worker.tracker_link import TrackerLink

LOOK_SECONDS = 0.05
OFFER_SECONDS = 2.0
"""What nobody could take over is offered again: another Route may be there by now."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeavingRoom:
    """What a Worker leaves behind, and whom it tells."""

    shards: ShardTable
    sessions: SessionTable
    hops: Hops
    link: TrackerLink
    handing_over: HandingOver
    """Of the answers of which it is the Head Worker."""


class Leaving:
    """Leaves the Mesh, once."""

    def __init__(self, room: LeavingRoom) -> None:
        self._room = room

    async def leave(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Drain within the grace period, or until somebody is in a hurry; then say goodbye."""
        self._room.shards.leaving = True
        if not self._is_idle:
            log.info("draining", sessions=len(self._room.sessions), grace_seconds=grace_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._drain(hurry)
            self._end_what_is_left()
        # While it still listens: the Tracker and the Peers hear it before they miss it.
        await self._room.link.leave()

    @property
    def _is_idle(self) -> bool:
        # Nobody goes on here with a Session whose Head Worker is lost.
        runs = any(not session.is_orphan for session in self._room.sessions)
        return not runs and not len(self._room.handing_over.answers)

    async def _drain(self, hurry: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            offers = tasks.create_task(self._offer_until_cancelled())
            while not self._is_idle and not hurry.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await hurry.wait()
            offers.cancel()

    async def _offer_until_cancelled(self) -> None:
        await self._room.link.say_that_it_leaves()
        while True:
            await self._room.handing_over.offer(self._room.handing_over.begun_models())
            self._room.hops.tell_that_it_drains()
            await asyncio.sleep(OFFER_SECONDS)

    def _end_what_is_left(self) -> None:
        """Tell whoever is not served any longer, so that nobody has to find out by silence."""
        self._room.handing_over.move_answers()
        for session in self._room.sessions:
            # Its own answers end by moving, and only in the midst of tokens they do so at once.
            if session.place or session.outlet is not None:
                self._room.hops.fail(session, "draining", "This Worker is leaving.")
