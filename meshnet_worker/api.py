"""A Worker's HTTP endpoints, joined to its rooms; and how its errors look to a client."""

from dataclasses import dataclass

import msgspec
from aiohttp import web

from meshnet_common.edge.http import ErrorTable, json_response, new_application
from meshnet_common.errors import MeshnetError
from meshnet_common.openai import errors
from meshnet_common.openai.errors import ApiError
from meshnet_worker.chat import RETRY_AFTER_SECONDS, Chat
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.kv_report import KvReport, pool_reports
from meshnet_worker.sessions import SessionTable, UnknownSessionError
from meshnet_worker.shards import NotServingError, ShardTable
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


def make_application(rooms: Rooms, chat: Chat, insides: Insides) -> web.Application:
    """Make the application with all endpoints."""
    app = new_application(ERROR_TABLE)
    forwarding = Forwarding(rooms.admission, rooms.hops, insides.sessions, rooms.tickets)
    shown = _Shown(rooms, insides)
    app.router.add_post("/v1/chat/completions", chat.complete)
    app.router.add_post("/chat/completions", chat.complete)
    app.router.add_post("/forward", forwarding.forward)
    app.router.add_get("/link", rooms.links.accept)
    app.router.add_get("/v1/steps", shown.steps)
    app.router.add_get("/v1/kv", shown.kv)
    app.router.add_get("/healthz", _healthz)
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

    async def readyz(self, _request: web.Request) -> web.Response:
        if not any(shard.ready for shard in self._insides.shards):
            raise errors.model_unavailable("No Shard is ready yet.", RETRY_AFTER_SECONDS)
        return web.json_response({"status": "ready"})


async def _healthz(_request: web.Request) -> web.Response:
    return web.json_response({"status": "alive"})


def _unavailable(error: MeshnetError) -> ApiError:
    return errors.model_unavailable(str(error), RETRY_AFTER_SECONDS)


ERROR_TABLE: ErrorTable = {
    NotServingError: _unavailable,
    TrackerUnreachableError: _unavailable,
    UnknownSessionError: lambda error: errors.not_found(str(error)),
}
