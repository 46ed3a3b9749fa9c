"""The Worker's daemon: makes the rooms, joins them, and keeps them running until told to stop.

All its tasks live in one TaskGroup.
"""

import asyncio
from functools import partial

import structlog

from meshnet_common.edge.clock import SteadyClock, loop_time
from meshnet_common.edge.serving import (
    listening,
    stop_and_hurry_on_signal,
    write_ready_file,
)
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import Heartbeat
from meshnet_worker.admission import Admission
from meshnet_worker.api import Insides, make_application
from meshnet_worker.chat import Chat, ChatRoom
from meshnet_worker.embeddings import EmbeddingRoom, Embeddings
from meshnet_worker.engine_port import LayersMeasured, Stepped
from meshnet_worker.engine_process import EngineListener, EngineProcess
from meshnet_worker.engine_supervisor import EngineOwner, EngineSlot, EngineSupervisor
from meshnet_worker.handing_over import HandingOver
from meshnet_worker.head import Heads
from meshnet_worker.head_driver import HeadRoom
from meshnet_worker.hop_room import HopRoom
from meshnet_worker.hops import Hops
from meshnet_worker.housekeeping import STALLED_SECONDS, Housekeeper, Patience, Tuning
from meshnet_worker.keeper import ShardKeeper
from meshnet_worker.kept import KeptActivations
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.leaving import Leaving, LeavingRoom
from meshnet_worker.measures import Held, Measures, Place, Seen
from meshnet_worker.options import WorkerOptions
from meshnet_worker.peer_prober import PeerProber
from meshnet_worker.peer_trips import PeerTrips
from meshnet_worker.routes import Routes
from meshnet_worker.sessions import HopSession, SessionTable
from meshnet_worker.shard_weights import ShardWeights
from meshnet_worker.shards import ShardTable
from meshnet_worker.slots import HostShare, claimed_identity, shared_host
from meshnet_worker.speeds import link_bytes_per_second
from meshnet_worker.step_stats import StepStats
from meshnet_worker.switchboard import Rooms, Switchboard
from meshnet_worker.tickets import TicketBook
from meshnet_worker.tracker_client import TrackerClient
from meshnet_worker.tracker_link import TrackerClock, TrackerLink, Vitals
from meshnet_worker.transport.links import LinkListener, Links
from meshnet_worker.transport.tasks import start_task
from meshnet_worker.transport.watch import StepAges
from meshnet_worker.weights.library import WeightsLibrary, WeightsSettings

LEASE_SECONDS = 120.0
KEPT_BYTES = 256 << 20
"""Host memory for what this Worker has sent and could send again."""

log = structlog.get_logger()


class _StopAskedError(Exception):
    """SIGTERM or SIGINT has come."""


async def run_worker(options: WorkerOptions) -> None:
    """Lend this machine's device to the Mesh until a signal; raises MeshnetError."""
    with (
        stop_and_hurry_on_signal() as (stop, hurry),
        claimed_identity(options.state_folder) as worker_id,
        shared_host() as share,
    ):
        daemon = Daemon(options, worker_id, share)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(daemon.run(tasks))
                await stop.wait()
                await _leave(daemon, hurry)
        except* _StopAskedError:
            log.info("stopping")
        finally:
            await daemon.hang_up()


async def _leave(daemon: "Daemon", hurry: asyncio.Event) -> None:
    await daemon.leave(hurry)
    # An exception is how a TaskGroup is told to cancel its tasks.
    raise _StopAskedError


class Daemon:
    """One Worker's rooms and their tasks."""

    def __init__(self, options: WorkerOptions, worker_id: WorkerId, share: HostShare) -> None:
        self._options = options
        self._worker_id = worker_id
        self._tuning = Tuning(options, share)
        self._tracker = TrackerClient(*options.tracker_urls)
        self._clock = TrackerClock()
        self._slot = EngineSlot()
        self._shards = ShardTable()
        self._sessions = SessionTable(LEASE_SECONDS)
        self._kv = KvBudget()
        settings = WeightsSettings(options.weights_folder, options.disk_budget_bytes)
        self._library = WeightsLibrary(settings)
        self._weights = ShardWeights(self._library)
        self._keeper = ShardKeeper(
            self._shards, self._sessions, self._kv, self._slot, self._weights
        )
        self._stats = StepStats()
        held = Held(self._shards, self._sessions, self._kv)
        self._measures = Measures(options, worker_id, held)
        self._trips = PeerTrips(worker_id)
        self._prober = PeerProber(self._trips)
        self._rooms: Rooms | None = None
        vitals = Vitals(self._measures.registration, self._heartbeat, self._prober.ask)
        self._link = TrackerLink(self._tracker, self._keeper, vitals, self._clock)
        self._tickets = TicketBook(self._tracker.keys)
        self._routes = Routes(worker_id, self._tracker, self._tickets, self._clock)
        self._handing_over: HandingOver | None = None
        self._leaving: Leaving | None = None

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Start the engine, listen, join the Mesh, and serve until cancelled."""
        self._rooms = rooms = self._connect(tasks)
        supervisor = EngineSupervisor(
            self._options.device,
            self._slot,
            EngineListener(
                partial(self._on_stepped, rooms.hops),
                rooms.hops.on_session_failed,
                self._on_measured,
            ),
            EngineOwner(self._prepare, partial(self._on_engine_lost, tasks, rooms.hops)),
        )
        tasks.create_task(supervisor.run())
        probed = await supervisor.probed
        self._measures.on_probed(probed)
        chat = self._chat(rooms)
        insides = Insides(self._shards, self._sessions, self._kv, self._stats)
        app = make_application(rooms, chat, self._embeddings(), insides)
        async with listening(app, self._options.host, self._options.port) as url:
            log.info("worker listening", url=url, worker_id=self._worker_id)
            self._measures.place = place = Place(self._options.advertised_url or url, probed)
            await self._link.join()
            link_speed = await link_bytes_per_second(self._tracker.send_probe)
            self._measures.speeds.link_bytes_per_second = link_speed
            log.info("link measured", bytes_per_second=round(link_speed))
            if self._options.ready_file is not None:
                write_ready_file(self._options.ready_file, url)
            self._handing_over = self._handing_over_of(rooms, chat, place.url)
            self._leaving = Leaving(self._leaving_room(rooms, self._handing_over))
            self._start_loops(tasks, rooms)
            try:
                await asyncio.Event().wait()
            finally:
                await self._link.leave()
                await rooms.links.close()

    def _start_loops(self, tasks: asyncio.TaskGroup, rooms: Rooms) -> None:
        tasks.create_task(self._link.beat())
        tasks.create_task(self._link.follow(tasks))
        tasks.create_task(self._housekeeper(rooms.hops).run())
        tasks.create_task(self._tickets.keep_fresh())
        tasks.create_task(self._prober.run())

    async def leave(self, hurry: asyncio.Event) -> None:
        """Leave the Mesh if this Worker has joined it, without haste until there is a hurry."""
        if self._leaving is not None:
            await self._leaving.leave(self._options.grace_seconds, hurry)

    async def hang_up(self) -> None:
        """Close the connections to the Tracker and to where weights come from."""
        await self._tracker.close()
        await self._library.close()

    def _connect(self, tasks: asyncio.TaskGroup) -> Rooms:
        switchboard = Switchboard(self._worker_id, tasks)
        dispatch, wait_seconds = switchboard.dispatch, self._options.kv_wait_seconds
        room = HopRoom(
            worker_id=self._worker_id,
            shards=self._shards,
            kv=self._kv,
            sessions=self._sessions,
            clock=self._clock,
            steady=SteadyClock(),
            send=self._slot.send,
            dispatch=dispatch,
            on_freed=lambda session: self._on_freed(heads, session),
            kept=KeptActivations(KEPT_BYTES),
            slow_batch_seconds=Patience(self._measures, self._slot).seconds,
        )
        hops = Hops(room)
        head_room = HeadRoom(
            dispatch=dispatch,
            renew=self._routes.renewed,
            clock=self._clock,
            wait_seconds=wait_seconds,
            start=tasks.create_task,
            let_go=hops.let_go,
            is_stuck=lambda: hops.overdue_seconds() >= STALLED_SECONDS,
        )
        heads = Heads(head_room)
        admission = Admission(room, hops)
        listener = LinkListener(
            on_body=switchboard.receive,
            on_peer_lost=hops.on_peer_lost,
            on_peer_stalled=hops.on_peer_stalled,
            step_ages=lambda: StepAges(hops.oldest_step_seconds(), hops.overdue_seconds()),
        )
        links = Links(self._worker_id, listener, tasks)
        rooms = Rooms(links, admission, hops, heads, self._tickets, self._sessions)
        switchboard.connect(rooms)
        return rooms

    def _chat(self, rooms: Rooms) -> Chat:
        return Chat(
            ChatRoom(
                shards=self._shards,
                codecs=self._keeper.codecs,
                heads=rooms.heads,
                routes=self._routes,
                clock=self._clock,
                kv=self._kv,
                chunk_tokens=self._options.chunk_tokens,
            )
        )

    def _embeddings(self) -> Embeddings:
        room = EmbeddingRoom(self._shards, self._keeper.codecs, self._routes, self._slot)
        return Embeddings(room)

    def _handing_over_of(self, rooms: Rooms, chat: Chat, url: str) -> HandingOver:
        find_heads = self._tracker.head_workers
        return HandingOver(self._shards, rooms.heads, chat.move_away, find_heads, url)

    def _leaving_room(self, rooms: Rooms, handing_over: HandingOver) -> LeavingRoom:
        return LeavingRoom(
            shards=self._shards,
            sessions=self._sessions,
            hops=rooms.hops,
            link=self._link,
            handing_over=handing_over,
        )

    def _housekeeper(self, hops: Hops) -> Housekeeper:
        return Housekeeper(hops, self._slot, self._tuning)

    async def _prepare(self, engine: EngineProcess) -> None:
        engine.send(self._tuning.tune())
        await self._keeper.restore(engine)
        self._link.hurry()

    def _heartbeat(self, epoch: int) -> Heartbeat:
        self._measures.speeds.download_bytes_per_second = self._weights.bytes_per_second
        if self._rooms is None:
            return self._measures.heartbeat(epoch)
        trips = self._trips.told(self._rooms.links.round_trips(), loop_time())
        return self._measures.heartbeat(epoch, Seen(self._rooms.heads.waiting, trips))

    def _on_stepped(self, hops: Hops, stepped: Stepped, payload: bytes) -> None:
        # The results first: nothing stands between a step and what follows from it.
        hops.on_stepped(stepped, payload)
        self._stats.record(stepped)

    def _on_measured(self, measured: LayersMeasured) -> None:
        if self._measures.on_measured(measured):
            self._link.hurry()

    def _on_freed(self, heads: Heads, session: HopSession) -> None:
        self._keeper.on_freed()
        if session.held:
            # One that never ran was refused elsewhere; it made nobody else wait.
            heads.on_freed()

    def _on_engine_lost(self, tasks: asyncio.TaskGroup, hops: Hops) -> None:
        handing_over = self._handing_over
        models = handing_over.begun_models() if handing_over else []
        self._keeper.forget_engine()
        hops.on_engine_lost()
        self._link.hurry()
        if handing_over is not None:
            # Another Head Worker is sooner there than this one's engine.
            start_task(tasks, handing_over.offer(models))
