"""What Workers call: joining, heartbeats, leaving; and the list of Workers for people."""

import secrets
from collections.abc import AsyncIterator, Mapping

import msgspec
import structlog
from aiohttp import hdrs, web

from meshnet_common.edge.http import bearer_token, json_response, read_json_body
from meshnet_common.ids import WorkerId
from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.json_body import decode_message
from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.messages import Heartbeat, HeartbeatReply, Registered, RegisterWorker
from meshnet_tracker.answers import summarize_workers
from meshnet_tracker.handlers.errors import insufficient_memory
from meshnet_tracker.planning.capacity import smallest_layers, usable_bytes
from meshnet_tracker.planning.measuring import peers_to_measure
from meshnet_tracker.services import Services
from meshnet_tracker.store.errors import BadTokenError
from meshnet_tracker.tokens import token_sha256
from meshnet_tracker.worker_rules import check_heartbeat, check_registration, is_plain_id

TOKEN_BYTES = 32
PAGE_WORKERS = 100

_logger = structlog.get_logger()


def shown_token(request: web.Request) -> tuple[WorkerId, str]:
    """Return the Worker of the URL, and the hash of the token that the request carries.

    Raises BadTokenError where no Worker can have this id, before any database sees it.
    """
    worker_id = WorkerId(request.match_info["worker_id"])
    if not is_plain_id(worker_id):
        raise BadTokenError("Register again with POST /v1/workers.")
    return worker_id, token_sha256(bearer_token(request))


async def authenticated_worker(services: Services, request: web.Request) -> WorkerId:
    """Return the Worker of the URL if the request carries its token; raises BadTokenError."""
    worker_id, token = shown_token(request)
    await services.calls.authenticate(worker_id, token)
    return worker_id


class WorkerHandlers:
    """`/v1/workers` and below, except directives."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._presets: tuple[ModelPreset, ...] = ()
        self._smallest: Mapping[str, int] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            # First, since resources are tried in this order and this one is asked for most.
            web.post("/v1/workers/{worker_id}/heartbeat", self.heartbeat),
            web.post("/v1/workers", self.register),
            web.get("/v1/workers", self.list_all),
            web.post("/v1/workers/{worker_id}/link-probe", self.take_probe),
            web.delete("/v1/workers/{worker_id}", self.leave),
        ]

    async def register(self, request: web.Request) -> web.Response:
        services = self._services
        registration = decode_message(await read_json_body(request), RegisterWorker)
        check_registration(registration)
        await self._check_memory(registration)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        await services.calls.register(registration, token_sha256(token))
        services.probes.trust(WorkerId(registration.worker_id))
        # The planner waits for the first heartbeat, but no Route may lead over what it held before.
        services.view.forget()
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
        worker_id, token = shown_token(request)
        heartbeat = await self._read_heartbeat(request, worker_id, token)
        now = services.clock.now()
        if not await services.probes.reaches(worker_id, now):
            # Nobody who dials it comes through, so its own word does not count.
            await services.calls.authenticate(worker_id, token)
        elif await services.calls.beat(worker_id, token, heartbeat):
            services.workers_changed()
        services.metrics.heartbeat(worker_id, services.settings.heartbeat_seconds, now)
        measure = peers_to_measure(services.view.table, worker_id, now)
        reply = HeartbeatReply(now=services.clock.now(), measure=measure)
        return json_response(msgspec.json.encode(reply))

    async def take_probe(self, request: web.Request) -> web.Response:
        """Take a body that means nothing: the Worker measures how fast it can send."""
        await authenticated_worker(self._services, request)
        await request.read()
        return web.Response(status=204)

    async def leave(self, request: web.Request) -> web.Response:
        worker_id, token = shown_token(request)
        await self._services.calls.leave(worker_id, token)
        self._services.probes.trust(worker_id)
        self._services.workers_changed()
        _logger.info("worker left", worker=worker_id)
        return web.Response(status=204)

    async def list_all(self, request: web.Request) -> web.StreamResponse:
        """List all Workers, the lost ones included, a page at a time so that nobody waits long."""
        pages = self._pages()
        # Before the first byte is sent, an error has an answer of its own.
        first = await anext(pages, b"")
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "application/json"})
        await response.prepare(request)
        await response.write(b'{"workers":[' + first)
        async for page in pages:
            await response.write(b"," + page)
        await response.write(b"]}")
        return response

    async def _pages(self) -> AsyncIterator[bytes]:
        """Encode all Workers, some at a time, without the brackets around them."""
        after = WorkerId("")
        while records := await self._services.store.worker_page(after, PAGE_WORKERS):
            after = records[-1].worker_id
            summaries = summarize_workers(records, self._services.clock.now())
            yield msgspec.json.encode(summaries.workers)[1:-1]

    async def _read_heartbeat(
        self, request: web.Request, worker_id: WorkerId, token: str
    ) -> Heartbeat:
        body = await read_json_body(request)
        try:
            heartbeat = decode_message(body, Heartbeat)
            check_heartbeat(heartbeat)
        except ApiError:
            # Whoever is not a Worker is told that first.
            await self._services.calls.authenticate(worker_id, token)
            raise
        return heartbeat

    async def _check_memory(self, registration: RegisterWorker) -> None:
        offered = registration.capabilities
        presets = await self._services.view.presets()
        if presets is not self._presets:
            self._presets, self._smallest = presets, smallest_layers(presets)
        fitting = (self._smallest.get(name) for name in offered.quantizations)
        layer_bytes = min((size for size in fitting if size is not None), default=None)
        usable = usable_bytes(offered.vram_bytes, self._services.settings.policy)
        if layer_bytes is not None and usable < layer_bytes:
            raise insufficient_memory(usable, layer_bytes)
