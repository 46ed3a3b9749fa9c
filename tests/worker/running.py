"""A Worker's rooms joined as its daemon joins them, behind a real server on loopback.

The engine is whatever `send` does: a list that is only written, a few lines that play an engine,
or the real process.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import Body
from meshnet_common.protocol.messages import HopFault, RouteHop
from meshnet_worker.admission import Admission
from meshnet_worker.api import ERROR_TABLE
from meshnet_worker.engine_port import Command, RunSegment, Stepped, StepResult
from meshnet_worker.head import Heads
from meshnet_worker.head_driver import HeadRoom
from meshnet_worker.hops import Hops
from meshnet_worker.switchboard import Rooms, Switchboard
from meshnet_worker.tickets import KeySet, SignedRoute, TicketBook
from meshnet_worker.tracker_client import TrackerUnreachableError
from meshnet_worker.transport.forward import Forwarding
from meshnet_worker.transport.links import LinkListener, Links
from meshnet_worker.transport.watch import StepAges
from tests.common.builders import HIDDEN_SIZE, KEY_ID, hop, signing_key
from tests.worker.builders import RecordingRoom
from tests.worker.waiting import Changes, ending_tasks

MEND_SECONDS = 1.0
"""Nobody finds another Route here."""


async def known_keys() -> KeySet:
    return {KEY_ID: signing_key().public_key()}


async def no_fresh_route(
    _route: SignedRoute, _avoid: frozenset[str], _faults: tuple[HopFault, ...]
) -> SignedRoute:
    raise TrackerUnreachableError


class RunningWorker:
    """One Worker; `recording` has its memory and the commands for its engine."""

    def __init__(self, recording: RecordingRoom, tasks: asyncio.TaskGroup) -> None:
        self.recording = recording
        self.url = ""
        self.changes = Changes()
        self.play: Callable[[Command, bytes], None] = lambda _command, _payload: None
        worker_id = WorkerId(recording.worker_id)
        self.switchboard = Switchboard(worker_id, tasks)
        dispatch, wait_seconds = self.switchboard.dispatch, recording.wait_seconds
        head_room = HeadRoom(
            dispatch=dispatch,
            renew=no_fresh_route,
            clock=recording.clock,
            wait_seconds=wait_seconds,
            start=tasks.create_task,
            mend_seconds=MEND_SECONDS,
        )
        self.heads = Heads(head_room)
        room = replace(
            recording.room,
            send=self._send,
            dispatch=self._dispatch,
            on_freed=lambda _session: self.heads.on_freed(),
        )
        self.hops = Hops(room)
        self.admission = Admission(room, self.hops)
        self.links = Links(worker_id, self._listener(), tasks)
        self.fetch_keys = known_keys
        self.tickets = TicketBook(self._fetch_keys)
        self.switchboard.connect(
            Rooms(
                self.links,
                self.admission,
                self.hops,
                self.heads,
                self.tickets,
                recording.sessions,
            )
        )
        self.forwarding = Forwarding(self.admission, self.hops, recording.sessions, self.tickets)
        self.heard: list[Body] = []
        self.lost: list[str] = []

    def hop(self, start: int, end: int) -> RouteHop:
        return hop(self.recording.worker_id, start, end, self.url)

    @property
    def open_sessions(self) -> int:
        return len(self.recording.sessions)

    @property
    def is_as_before(self) -> bool:
        """Whether no Session is open, all KV is free and nothing is kept or counted as running."""
        recording = self.recording
        is_free = recording.kv.free_bytes == recording.kv_bytes and not recording.kept.size_bytes
        return self.open_sessions == 0 and is_free and self.hops.oldest_step_seconds() == 0.0

    async def _fetch_keys(self) -> KeySet:
        return await self.fetch_keys()

    def _send(self, command: Command, payload: bytes) -> None:
        self.recording.commands.append((command, payload))
        self.play(command, payload)
        self.changes.tell()

    def _dispatch(self, target: RouteHop, body: Body) -> None:
        self.recording.sent.append((target.worker_id, body))
        self.switchboard.dispatch(target, body)

    def _receive(self, sender: WorkerId, body: Body) -> None:
        self.switchboard.receive(sender, body)
        self.heard.append(body)
        self.changes.tell()

    def _listener(self) -> LinkListener:
        return LinkListener(
            on_body=self._receive,
            on_peer_lost=self._on_lost,
            on_peer_stalled=self.hops.on_peer_stalled,
            step_ages=lambda: StepAges(
                self.hops.oldest_step_seconds(), self.hops.overdue_seconds()
            ),
        )

    def _on_lost(self, worker_id: WorkerId, reason: str) -> None:
        self.lost.append(worker_id)
        self.hops.on_peer_lost(worker_id, reason)
        self.changes.tell()


@asynccontextmanager
async def served(worker: RunningWorker) -> AsyncIterator[None]:
    app = new_application(ERROR_TABLE)
    app.router.add_get("/link", worker.links.accept)
    app.router.add_post("/forward", worker.forwarding.forward)
    async with listening(app, "127.0.0.1", 0) as worker.url:
        yield


@asynccontextmanager
async def running_workers(*recordings: RecordingRoom) -> AsyncIterator[list[RunningWorker]]:
    """Serve these Workers until the block ends, then stop them as their daemon does."""
    async with AsyncExitStack() as servers:
        workers = []
        try:
            async with ending_tasks() as tasks:
                workers = [RunningWorker(recording, tasks) for recording in recordings]
                for worker in workers:
                    await servers.enter_async_context(served(worker))
                yield workers
        finally:
            for worker in workers:
                await worker.links.close()


class PlayedEngine:
    """Plays an engine that answers each segment at once: zeros, or its end position as token."""

    def __init__(self, worker: RunningWorker) -> None:
        self._worker = worker
        worker.play = self.play

    def play(self, command: Command, _payload: bytes) -> None:
        if isinstance(command, RunSegment):
            asyncio.get_running_loop().call_soon(self._step, command)

    def _step(self, run: RunSegment) -> None:
        session = self._worker.recording.sessions.of_engine(run.session)
        is_tail = session is not None and session.ends_model
        hidden = b"" if is_tail else bytes(4 * HIDDEN_SIZE * run.tokens)
        token_id = run.start + run.tokens if run.draws else None
        result = StepResult(
            run.session, run.epoch, run.start, run.tokens, run.flags, len(hidden), token_id
        )
        self._worker.hops.on_stepped(Stepped((result,), 0.0, 0.0), hidden)
