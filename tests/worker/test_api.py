from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from meshnet_common.edge.serving import listening
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import ActivationFrame, ActivationsHeader
from meshnet_worker.api import Insides, make_application
from meshnet_worker.chat import Chat, ChatRoom
from meshnet_worker.embeddings import EmbeddingRoom, Embeddings
from meshnet_worker.engine_supervisor import EngineSlot
from meshnet_worker.hops import Hops
from meshnet_worker.housekeeping import STALLED_SECONDS
from meshnet_worker.kv_report import KvReport
from meshnet_worker.routes import Routes
from meshnet_worker.step_stats import StepStats
from meshnet_worker.tracker_client import TrackerClient
from tests.common.builders import segment
from tests.worker.builders import RecordingRoom, hop_session, kv_request
from tests.worker.running import RunningWorker, running_workers


@asynccontextmanager
async def served(recording: RecordingRoom) -> AsyncIterator[str]:
    """A Worker's own endpoints; nobody asks its Tracker anything."""
    async with running_workers(recording) as (worker,), served_by(worker) as url:
        yield url


@asynccontextmanager
async def served_by(worker: RunningWorker) -> AsyncIterator[str]:
    recording = worker.recording
    insides = Insides(recording.shards, recording.sessions, recording.kv, StepStats())
    chat, embeddings = chat_of(worker), embeddings_of(worker)
    app = make_application(worker.switchboard.rooms, chat, embeddings, insides)
    async with listening(app, "127.0.0.1", 0) as url:
        yield url


def embeddings_of(worker: RunningWorker) -> Embeddings:
    recording = worker.recording
    return Embeddings(EmbeddingRoom(recording.shards, {}, routes_of(worker), EngineSlot()))


def routes_of(worker: RunningWorker) -> Routes:
    recording, tracker = worker.recording, TrackerClient("http://127.0.0.1:1")
    return Routes(recording.room.worker_id, tracker, worker.tickets, recording.clock)


def chat_of(worker: RunningWorker) -> Chat:
    recording = worker.recording
    return Chat(
        ChatRoom(
            shards=recording.shards,
            codecs={},
            heads=worker.heads,
            routes=routes_of(worker),
            clock=recording.clock,
            kv=recording.kv,
            chunk_tokens=128,
        )
    )


def silent_since(recording: RecordingRoom, hops: Hops, seconds: float) -> None:
    """Let the engine have had a segment for so long."""
    recording.sessions.add(hop_session(engine_session=recording.sessions.new_engine_session()))
    header = ActivationsHeader((segment(token_ids=(7,)),), 0, "float32")
    hops.run(WorkerId(recording.worker_id), ActivationFrame(header, b""))
    recording.steady.advance(seconds)


async def get(url: str) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.read()


async def test_a_worker_shows_how_its_kv_is_used() -> None:
    recording = RecordingRoom(kv_bytes=4000)
    recording.kv.reserve(kv_request(positions=10))
    async with served(recording) as url:
        status, body = await get(f"{url}/v1/kv")
    report = msgspec.json.decode(body, type=KvReport)
    assert (status, report.block_positions, report.budget_bytes) == (200, 1, 4000)
    assert report.free_bytes == 4000 - 10 * 40
    assert [(pool.blocks, pool.used) for pool in report.pools] == [(100, 40)]
    assert (report.sessions, report.waiting, report.preempted) == (0, 0, 0)


async def test_a_worker_is_alive_before_it_is_ready() -> None:
    for ready, status in ((None, 503), ((0, 4), 200)):
        async with served(RecordingRoom(ready=ready)) as url:
            assert (await get(f"{url}/healthz"))[0] == 200
            assert (await get(f"{url}/readyz"))[0] == status


async def test_a_worker_whose_engine_is_overdue_does_not_count_as_alive() -> None:
    recording = RecordingRoom()
    async with running_workers(recording) as (worker,), served_by(worker) as url:
        assert await get(f"{url}/healthz") == (200, b'{"status": "alive", "overdue_seconds": 0.0}')
        silent_since(recording, worker.hops, STALLED_SECONDS)
        status, body = await get(f"{url}/healthz")
        assert (status, body) == (503, b'{"status": "stalled", "overdue_seconds": 3.0}')


async def test_a_worker_that_leaves_is_not_ready() -> None:
    recording = RecordingRoom()
    recording.shards.leaving = True
    async with served(recording) as url:
        assert (await get(f"{url}/healthz"))[0] == 200
        assert (await get(f"{url}/readyz"))[0] == 503


async def test_a_worker_shows_its_steps() -> None:
    async with served(RecordingRoom()) as url:
        assert await get(f"{url}/v1/steps") == (200, b'{"steps":[]}')
