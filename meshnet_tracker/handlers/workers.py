"""What Workers call: joining, heartbeats, leaving; and the list of Workers for people."""

import hashlib
import secrets

import msgspec
import structlog
from aiohttp import hdrs, web

from meshnet_common.edge.http import json_response, read_json_body
from meshnet_common.ids import WorkerId
from meshnet_common.openai.json_body import decode_body
from meshnet_common.protocol.messages import Heartbeat, HeartbeatReply, Registered, RegisterWorker
from meshnet_tracker.answers import summarize_workers
from meshnet_tracker.handlers.errors import insufficient_memory
from meshnet_tracker.planning.capacity import smallest_layer_bytes, usable_bytes
from meshnet_tracker.services import Services
from meshnet_tracker.worker_rules import check_heartbeat, check_registration

TOKEN_BYTES = 32

_logger = structlog.get_logger()


def token_sha256(token: str) -> str:
    """Return the form in which the database knows a Worker's token."""
    return hashlib.sha256(token.encode()).hexdigest()


async def authenticated_worker(services: Services, request: web.Request) -> WorkerId:
    """Return the Worker of the URL if the request carries its token; raises BadTokenError."""
    worker_id = WorkerId(request.match_info["worker_id"])
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    offered = token.strip() if scheme.lower() == "bearer" else ""
    await services.store.authenticate_worker(worker_id, token_sha256(offered))
    return worker_id


class WorkerHandlers:
    """`/v1/workers` and below, except directives."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/workers", self.register),
            web.get("/v1/workers", self.list_all),
            web.post("/v1/workers/{worker_id}/heartbeat", self.heartbeat),
            web.post("/v1/workers/{worker_id}/link-probe", self.take_probe),
            web.delete("/v1/workers/{worker_id}", self.leave),
        ]

    async def register(self, request: web.Request) -> web.Response:
        services = self._services
        registration = decode_body(await read_json_body(request), RegisterWorker)
        check_registration(registration)
        await self._check_memory(registration)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        await services.store.register_worker(
            registration, token_sha256(token), services.clock.now()
        )
        services.probes.trust(WorkerId(registration.worker_id))
        _logger.info(
            "worker joined",
            worker=registration.worker_id,
            url=registration.url,
            vram_bytes=registration.capabilities.vram_bytes,
        )
        answer = Registered(
            worker_id=registration.worker_id,
            token=token,
            heartbeat_seconds=services.settings.heartbeat_seconds,
            lost_after_seconds=services.settings.lost_after_seconds,
            directive_wait_seconds=services.settings.directive_wait_seconds,
        )
        return json_response(msgspec.json.encode(answer), status=201)

    async def heartbeat(self, request: web.Request) -> web.Response:
        services = self._services
        worker_id = await authenticated_worker(services, request)
        heartbeat = decode_body(await read_json_body(request), Heartbeat)
        check_heartbeat(heartbeat)
        now = services.clock.now()
        if await services.probes.reaches(worker_id, now) and await services.store.record_heartbeat(
            worker_id, heartbeat, services.load_deadline(), now
        ):
            services.mesh_changed()
        return json_response(msgspec.json.encode(HeartbeatReply(now=services.clock.now())))

    async def take_probe(self, request: web.Request) -> web.Response:
        """Take a body that means nothing: the Worker measures how fast it can send."""
        await authenticated_worker(self._services, request)
        await request.read()
        return web.Response(status=204)

    async def leave(self, request: web.Request) -> web.Response:
        worker_id = await authenticated_worker(self._services, request)
        await self._services.store.remove_worker(worker_id)
        self._services.probes.trust(worker_id)
        self._services.mesh_changed()
        _logger.info("worker left", worker=worker_id)
        return web.Response(status=204)

    async def list_all(self, request: web.Request) -> web.Response:
        del request
        records = await self._services.store.workers()
        summaries = summarize_workers(records, self._services.clock.now())
        return json_response(msgspec.json.encode(summaries))

    async def _check_memory(self, registration: RegisterWorker) -> None:
        offered = registration.capabilities
        records = await self._services.store.presets()
        presets = [record.preset for record in records]
        layer_bytes = smallest_layer_bytes(presets, frozenset(offered.quantizations))
        usable = usable_bytes(offered.vram_bytes, self._services.settings.policy)
        if layer_bytes is not None and usable < layer_bytes:
            raise insufficient_memory(usable, layer_bytes)
