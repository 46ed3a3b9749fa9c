"""A Worker's HTTP endpoints, joined to its rooms; and how its errors look to a client."""

from dataclasses import dataclass

import msgspec
from aiohttp import web

from meshnet_common.edge.http import MAX_BODY_BYTES, ErrorTable, json_response, new_application
from meshnet_common.errors import MeshnetError
from meshnet_common.openai import errors
from meshnet_common.openai.apis import APIS, COUNTED_APIS
from meshnet_common.openai.errors import ApiError, ErrorBody
from meshnet_common.protocol.resume import MAX_RECORD_BYTES
from meshnet_worker.answers.failing import RETRY_AFTER_SECONDS
from meshnet_worker.chat import Chat
from meshnet_worker.embeddings import Embeddings
from meshnet_worker.housekeeping import STALLED_SECONDS
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.kv_report import KvReport, pool_reports
from meshnet_worker.sessions import SessionTable, UnknownSessionError
from meshnet_worker.shards import DrainingError, NotServingError, ShardTable
from meshnet_worker.step_stats import StepStats
from meshnet_worker.switchboard import Rooms
from meshnet_worker.tracker_client import TrackerUnreachableError
from meshnet_worker.transport.forward import Forwarding


@dataclass(frozen=True, slots=True)
class Insides:
    """What a Worker shows of itself to people, tests and benchmarks."""

    shards: ShardTable
    sessions: SessionTable
    kv: KvBudget
    stats: StepStats


def make_application(
    rooms: Rooms, chat: Chat, embeddings: Embeddings, insides: Insides
) -> web.Application:
    """Make the application with all endpoints."""
    # A Tracker that resumes an answer sends its record along with the client's body.
    app = new_application(ERROR_TABLE, max_body_bytes=MAX_BODY_BYTES + MAX_RECORD_BYTES)
    forwarding = Forwarding(rooms.admission, rooms.hops, insides.sessions, rooms.tickets)
    shown = _Shown(rooms, insides)
    for api in APIS:
        for url_path in api.url_paths:
            app.router.add_post(url_path, chat.answering(api))
    for api in COUNTED_APIS:
        for url_path in api.counting_paths:
            app.router.add_post(url_path, chat.counting(api))
    app.router.add_post("/v1/embeddings", embeddings.embed)
    app.router.add_post("/embeddings", embeddings.embed)
    app.router.add_post("/forward", forwarding.forward)
    app.router.add_get("/link", rooms.links.accept)
    app.router.add_get("/v1/steps", shown.steps)
    app.router.add_get("/v1/kv", shown.kv)
    app.router.add_get("/healthz", shown.healthz)
    app.router.add_get("/readyz", shown.readyz)
    return app


class _Shown:
    """Answers from what is inside."""

    def __init__(self, rooms: Rooms, insides: Insides) -> None:
        self._rooms = rooms
        self._insides = insides

    async def steps(self, _request: web.Request) -> web.Response:
        return json_response(msgspec.json.encode({"steps": self._insides.stats.rows()}))

    async def kv(self, _request: web.Request) -> web.Response:
        insides = self._insides
        report = KvReport(
            block_positions=insides.kv.block_positions,
            budget_bytes=insides.kv.budget_bytes,
            free_bytes=insides.kv.free_bytes,
            pools=pool_reports(insides.kv, insides.shards),
            sessions=len(insides.sessions),
            waiting=self._rooms.heads.waiting,
            preempted=self._rooms.hops.preempted,
        )
        return json_response(msgspec.json.encode(report))

    async def healthz(self, _request: web.Request) -> web.Response:
        overdue_seconds = self._rooms.hops.overdue_seconds()
        is_stalled = overdue_seconds >= STALLED_SECONDS
        body = {
            "status": "stalled" if is_stalled else "alive",
            "overdue_seconds": round(overdue_seconds, 1),
        }
        return web.json_response(body, status=503 if is_stalled else 200)

    async def readyz(self, _request: web.Request) -> web.Response:
        if self._insides.shards.leaving:
            raise errors.model_unavailable(str(DrainingError()), RETRY_AFTER_SECONDS)
        if not any(shard.ready for shard in self._insides.shards):
            raise errors.model_unavailable("No Shard is ready yet.", RETRY_AFTER_SECONDS)
        return web.json_response({"status": "ready"})


def _unavailable(error: MeshnetError) -> ApiError:
    return errors.model_unavailable(str(error), RETRY_AFTER_SECONDS)


def _draining(error: MeshnetError) -> ApiError:
    body = ErrorBody(str(error), errors.SERVER_ERROR, None, "draining")
    return ApiError(503, body, {"Retry-After": str(RETRY_AFTER_SECONDS)})


ERROR_TABLE: ErrorTable = {
    DrainingError: _draining,
    NotServingError: _unavailable,
    TrackerUnreachableError: _unavailable,
    UnknownSessionError: lambda error: errors.not_found(str(error)),
}
