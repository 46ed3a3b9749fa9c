"""The Worker's daemon: makes the rooms, joins them, and keeps them running until told to stop.

All its tasks live in one TaskGroup.
"""

import asyncio
import importlib.metadata
from dataclasses import dataclass
from functools import partial

import structlog
from aiohttp import web

from meshnet_common.edge.serving import listening, stop_on_signal, write_ready_file
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import Capabilities, Heartbeat, RegisterWorker
from meshnet_worker.admission import Admission
from meshnet_worker.api import Insides, make_application
from meshnet_worker.chat import Chat, ChatRoom
from meshnet_worker.engine_port import DeviceProbed, LayersMeasured, Stepped, Tune
from meshnet_worker.engine_process import EngineListener, EngineProcess
from meshnet_worker.engine_supervisor import EngineOwner, EngineSlot, EngineSupervisor
from meshnet_worker.head import HeadRoom, Heads
from meshnet_worker.hop_room import HopRoom
from meshnet_worker.hops import Hops
from meshnet_worker.keeper import ShardKeeper
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.options import WorkerOptions, budget_bytes
from meshnet_worker.routes import Routes
from meshnet_worker.sessions import HopSession, SessionTable
from meshnet_worker.shard_weights import ShardWeights
from meshnet_worker.shards import ShardTable
from meshnet_worker.slots import HostShare, claimed_identity, shared_host
from meshnet_worker.speeds import Speeds, link_bytes_per_second
from meshnet_worker.step_stats import StepStats
from meshnet_worker.switchboard import Rooms, Switchboard
from meshnet_worker.tickets import TicketBook
from meshnet_worker.tracker_client import TrackerClient
from meshnet_worker.tracker_link import TrackerClock, TrackerLink, Vitals
from meshnet_worker.transport.links import LinkListener, Links
from meshnet_worker.weights.library import WeightsLibrary, WeightsSettings

LEASE_SECONDS = 120.0
SWEEP_SECONDS = 5.0
HANGING_SECONDS = 30.0
"""An engine that finishes no step for so long, and for what a slow Batch takes, is restarted."""

log = structlog.get_logger()


class _StopAskedError(Exception):
    """SIGTERM or SIGINT has come."""


async def run_worker(options: WorkerOptions) -> None:
    """Lend this machine's device to the Mesh until a signal; raises MeshnetError."""
    with (
        stop_on_signal() as stop,
        claimed_identity(options.state_folder) as worker_id,
        shared_host() as share,
    ):
        daemon = Daemon(options, worker_id, share)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(daemon.run(tasks))
                await _stop_at(stop)
        except* _StopAskedError:
            log.info("stopping")
        finally:
            await daemon.hang_up()


async def _stop_at(stop: asyncio.Event) -> None:
    await stop.wait()
    # An exception is how a TaskGroup is told to cancel its tasks.
    raise _StopAskedError


@dataclass(frozen=True, slots=True)
class _Place:
    """Where this Worker is found, and what its device can do."""

    url: str
    probed: DeviceProbed


class Daemon:
    """One Worker's rooms and their tasks."""

    def __init__(self, options: WorkerOptions, worker_id: WorkerId, share: HostShare) -> None:
        self._options = options
        self._worker_id = worker_id
        self._share = share
        self._tracker = TrackerClient(options.tracker_url)
        self._clock = TrackerClock()
        self._slot = EngineSlot()
        self._shards = ShardTable()
        self._sessions = SessionTable(LEASE_SECONDS)
        self._kv = KvBudget()
        settings = WeightsSettings(options.weights_folder, options.disk_budget_bytes)
        self._library = WeightsLibrary(settings)
        weights = ShardWeights(self._library)
        self._keeper = ShardKeeper(self._shards, self._sessions, self._kv, self._slot, weights)
        self._stats = StepStats()
        self._speeds = Speeds()
        vitals = Vitals(self._registration, self._heartbeat)
        self._link = TrackerLink(self._tracker, self._keeper, vitals, self._clock)
        self._tickets = TicketBook(self._tracker.keys)
        self._routes = Routes(worker_id, self._tracker, self._tickets, self._clock)
        self._place: _Place | None = None

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Start the engine, listen, join the Mesh, and serve until cancelled."""
        rooms = self._connect(tasks)
        supervisor = EngineSupervisor(
            self._options.device,
            self._slot,
            EngineListener(
                partial(self._on_stepped, rooms.hops),
                rooms.hops.on_session_failed,
                self._on_measured,
            ),
            EngineOwner(self._prepare, partial(self._on_engine_lost, rooms.hops)),
        )
        tasks.create_task(supervisor.run())
        probed = await supervisor.probed
        self._kv.budget_bytes = self._budget(probed)
        self._kv.block_positions = probed.block_positions
        app = self._application(rooms)
        async with listening(app, self._options.host, self._options.port) as url:
            log.info("worker listening", url=url, worker_id=self._worker_id)
            self._place = _Place(self._options.advertised_url or url, probed)
            await self._link.join()
            link_speed = await link_bytes_per_second(self._tracker.send_probe)
            self._speeds.link_bytes_per_second = link_speed
            log.info("link measured", bytes_per_second=round(link_speed))
            if self._options.ready_file is not None:
                write_ready_file(self._options.ready_file, url)
            tasks.create_task(self._link.beat())
            tasks.create_task(self._link.follow(tasks))
            tasks.create_task(self._keep_house(rooms.hops))
            try:
                await asyncio.Event().wait()
            finally:
                # While it still listens: the Tracker and the Peers hear it before they miss it.
                await self._link.leave()
                await rooms.links.close()

    async def hang_up(self) -> None:
        """Close the connections to the Tracker and to where weights come from."""
        await self._tracker.close()
        await self._library.close()

    def _connect(self, tasks: asyncio.TaskGroup) -> Rooms:
        switchboard = Switchboard(self._worker_id, tasks)
        dispatch, wait_seconds = switchboard.dispatch, self._options.kv_wait_seconds
        heads = Heads(HeadRoom(dispatch, self._routes.renewed, self._clock, wait_seconds))
        room = HopRoom(
            worker_id=self._worker_id,
            shards=self._shards,
            kv=self._kv,
            sessions=self._sessions,
            clock=self._clock,
            send=self._slot.send,
            dispatch=dispatch,
            on_freed=partial(self._on_freed, heads),
        )
        hops = Hops(room)
        admission = Admission(room, hops)
        listener = LinkListener(switchboard.receive, hops.on_peer_lost)
        links = Links(self._worker_id, listener, tasks)
        rooms = Rooms(links, admission, hops, heads, self._tickets)
        switchboard.connect(rooms)
        return rooms

    def _application(self, rooms: Rooms) -> web.Application:
        chat = Chat(
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
        insides = Insides(self._shards, self._sessions, self._kv, self._stats)
        return make_application(rooms, chat, insides)

    def _budget(self, probed: DeviceProbed) -> int:
        is_cpu = probed.device == "cpu"
        size = budget_bytes(self._options.vram, probed.free_bytes, is_cpu=is_cpu)
        log.info(
            "device",
            device=probed.device,
            name=probed.name,
            free_bytes=probed.free_bytes,
            budget_bytes=size,
            layer_tokens_per_second=round(probed.tokens_per_second, 1),
            prefill_tokens_per_second=round(probed.prefill_tokens_per_second, 1),
            memory_bytes_per_second=round(probed.memory_bytes_per_second),
            benchmark_seconds=round(probed.seconds, 2),
        )
        return size

    def _registration(self) -> RegisterWorker:
        assert self._place is not None
        probed = self._place.probed
        return RegisterWorker(
            worker_id=self._worker_id,
            url=self._place.url,
            version=importlib.metadata.version("meshnet"),
            capabilities=Capabilities(
                vram_bytes=self._kv.budget_bytes,
                quantizations=probed.quantizations,
                benchmark_tokens_per_sec=probed.tokens_per_second,
                benchmark_model=probed.benchmark_model,
                device=probed.name,
                starts_at_zero=self._options.tracker_mode,
                decode_tokens_per_sec_per_layer=probed.tokens_per_second,
                prefill_tokens_per_sec_per_layer=probed.prefill_tokens_per_second,
                memory_bytes_per_sec=probed.memory_bytes_per_second,
                link_bytes_per_sec=self._speeds.link_bytes_per_second,
            ),
        )

    def _heartbeat(self, epoch: int) -> Heartbeat:
        return Heartbeat(
            shards=self._shards.reports(),
            sessions=len(self._sessions),
            kv_bytes_free=self._kv.free_bytes,
            directive_epoch=epoch,
            decode_tokens_per_sec_per_layer=self._speeds.decode_tokens_per_second_per_layer,
            prefill_tokens_per_sec_per_layer=self._speeds.prefill_tokens_per_second_per_layer,
            speeds_of=self._speeds.speeds_of,
            link_bytes_per_sec=self._speeds.link_bytes_per_second,
        )

    async def _prepare(self, engine: EngineProcess) -> None:
        engine.send(self._tune())
        await self._keeper.restore(engine)
        self._link.hurry()

    def _on_stepped(self, hops: Hops, stepped: Stepped, payload: bytes) -> None:
        # The results first: nothing stands between a step and what follows from it.
        hops.on_stepped(stepped, payload)
        self._stats.record(stepped)

    def _on_measured(self, measured: LayersMeasured) -> None:
        shard = next((one for one in self._shards if one.number == measured.shard), None)
        if shard is None or not measured.decode_tokens_per_second:
            return
        speeds = self._speeds
        speeds.decode_tokens_per_second_per_layer = measured.decode_tokens_per_second
        speeds.prefill_tokens_per_second_per_layer = measured.prefill_tokens_per_second
        speeds.speeds_of = shard.preset.public_name(shard.variant.quantization)
        self._link.hurry()
        log.info(
            "layers measured",
            model=speeds.speeds_of,
            layer_tokens_per_second=round(measured.decode_tokens_per_second, 1),
            prefill_tokens_per_second=round(measured.prefill_tokens_per_second, 1),
        )

    def _on_freed(self, heads: Heads, session: HopSession) -> None:
        self._keeper.on_freed()
        if session.held:
            # One that never ran was refused elsewhere; it made nobody else wait.
            heads.on_freed()

    def _on_engine_lost(self, hops: Hops) -> None:
        self._keeper.forget_engine()
        hops.on_engine_lost()
        self._link.hurry()

    def _tune(self) -> Tune:
        threads = self._options.threads or self._share.threads()
        return Tune(threads, self._options.decode_groups, self._options.compiles)

    def _hanging_seconds(self) -> float:
        layers = max((len(shard.ready) for shard in self._shards if shard.ready), default=0)
        return HANGING_SECONDS + self._speeds.slow_batch_seconds(layers)

    async def _keep_house(self, hops: Hops) -> None:
        """Free forgotten Sessions, and share the cores anew as Workers come and go."""
        tune = self._tune()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            hops.sweep()
            if hops.engine_silence_seconds() > self._hanging_seconds():
                log.warning("engine hangs", silent_seconds=round(self._hanging_seconds()))
                self._slot.abandon()
            if tune != self._tune():
                tune = self._tune()
                log.info("cores shared anew", threads=tune.threads)
                self._slot.send(tune, b"")
