"""The loops that tie this Worker to its Tracker: registration, heartbeats and directives.

A Tracker that is away costs nothing here: running Sessions go on, and every loop tries again.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from meshnet_common.edge.clock import Clock, SystemClock
from meshnet_common.errors import MeshnetError
from meshnet_common.protocol.messages import (
    Directive,
    DirectiveReport,
    DirectiveState,
    Heartbeat,
    PeerAddress,
    Registered,
    RegisterWorker,
    ShardState,
)
from meshnet_worker.keeper import ShardKeeper
from meshnet_worker.tracker_client import (
    NotRegisteredError,
    TrackerClient,
    TrackerUnreachableError,
)

RETRY_SECONDS = 1.0
FIRST_CONTACT_SECONDS = 60.0
LEAVE_SECONDS = 2.0
LOADING_BEAT_SECONDS = 1.0
"""While Layers load, heartbeats carry their progress."""

log = structlog.get_logger()


class TrackerClock:
    """The Tracker's time, as far as its heartbeat answers tell."""

    def __init__(self, own: Clock | None = None) -> None:
        self._own = own or SystemClock()
        self._ahead_seconds = 0.0

    def now(self) -> float:
        return self._own.now() + self._ahead_seconds

    def correct(self, tracker_now: float) -> None:
        self._ahead_seconds = tracker_now - self._own.now()


@dataclass(frozen=True, slots=True)
class Vitals:
    """What the loops tell the Tracker, asked anew each time."""

    registration: Callable[[], RegisterWorker]
    heartbeat: Callable[[int], Heartbeat]
    on_asked: Callable[[Sequence[PeerAddress]], None] = lambda _: None
    """Hears to which Peers the round trip is wanted."""


class TrackerLink:
    """Holds a Worker's place in the Mesh."""

    def __init__(
        self, client: TrackerClient, keeper: ShardKeeper, vitals: Vitals, clock: TrackerClock
    ) -> None:
        self._client = client
        self._keeper = keeper
        self._vitals = vitals
        self._clock = clock
        self._terms: Registered | None = None
        self._epoch = 0
        self._hurried = asyncio.Event()
        self._is_leaving = False
        self._has_left = False

    async def join(self) -> None:
        """Register for the first time; raises TrackerUnreachableError after a minute."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FIRST_CONTACT_SECONDS
        while self._terms is None:
            try:
                await self._register()
            except TrackerUnreachableError as error:
                if loop.time() > deadline:
                    raise
                log.warning("tracker unreachable", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def beat(self) -> None:
        """Send heartbeats for ever, and register again where the Tracker has forgotten us."""
        while True:
            body = self._vitals.heartbeat(self._epoch)
            try:
                reply = await self._client.heartbeat(body)
                self._clock.correct(reply.now)
                self._vitals.on_asked(reply.measure)
            except NotRegisteredError:
                if self._has_left:
                    return
                await self._register_again()
            except MeshnetError as error:
                log.warning("heartbeat failed", reason=str(error))
            is_loading = any(shard.state is ShardState.LOADING for shard in body.shards)
            seconds = self._registered.heartbeat_seconds
            await self._rest(min(seconds, LOADING_BEAT_SECONDS) if is_loading else seconds)

    def hurry(self) -> None:
        """Send the next heartbeat at once: what this Worker serves has changed."""
        self._hurried.set()

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurried.wait()
        self._hurried.clear()

    async def follow(self, tasks: asyncio.TaskGroup) -> None:
        """Wait for directives for ever; each is carried out beside the next wait."""
        while True:
            try:
                wait_seconds = self._registered.directive_wait_seconds
                for directive in await self._client.directives(self._epoch, wait_seconds):
                    self._epoch = max(self._epoch, directive.epoch)
                    tasks.create_task(self._obey(directive))
            except MeshnetError as error:
                # The heartbeat loop is the one that registers again.
                log.info("no directives", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def say_that_it_leaves(self) -> None:
        """Tell the Tracker, if it listens, that this Worker only finishes what it runs."""
        self._is_leaving = True
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._beat_once()

    async def leave(self) -> None:
        """Say goodbye once, if the Tracker listens."""
        if self._has_left:
            return
        self._has_left = True
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._client.leave()
        except (MeshnetError, TimeoutError) as error:
            log.warning("left without goodbye", reason=str(error))

    @property
    def _registered(self) -> Registered:
        assert self._terms is not None
        return self._terms

    async def _register(self) -> None:
        self._terms = await self._client.register(self._vitals.registration())
        tracker = self._client.trackers.present
        log.info("registered", worker_id=self._terms.worker_id, tracker=tracker)

    async def _register_again(self) -> None:
        try:
            await self._register()
        except MeshnetError as error:
            log.warning("registration failed", reason=str(error))

    async def _obey(self, directive: Directive) -> None:
        if self._is_leaving:
            # Not reported as failed: the Tracker would give it nothing for a while when it is back.
            return
        log.info(
            "directive",
            kind=directive.kind,
            model=directive.model,
            variant=directive.quantization,
            layers=f"[{directive.start_layer}, {directive.end_layer})",
            reason=directive.reason,
        )
        try:
            await self._report(directive, DirectiveReport(state=DirectiveState.ACCEPTED))
            await self._keeper.obey(directive, self._client.preset)
        except MeshnetError as error:
            log.warning("directive failed", id=directive.id, reason=str(error))
            report = DirectiveReport(state=DirectiveState.FAILED, reason=str(error))
        except Exception as error:
            # A fault of ours, but no directive may end the Worker.
            log.exception("directive failed", id=directive.id)
            reason = f"{type(error).__name__}: {error}"
            report = DirectiveReport(state=DirectiveState.FAILED, reason=reason)
        else:
            report = DirectiveReport(state=DirectiveState.READY)
        # The Tracker should see the Shard before it hears that the directive is done.
        await self._beat_once()
        await self._report(directive, report)

    async def _beat_once(self) -> None:
        try:
            await self._client.heartbeat(self._vitals.heartbeat(self._epoch))
        except MeshnetError as error:
            log.info("heartbeat failed", reason=str(error))

    async def _report(self, directive: Directive, report: DirectiveReport) -> None:
        try:
            await self._client.report(directive.id, report)
        except MeshnetError as error:
            log.warning("report failed", id=directive.id, reason=str(error))
