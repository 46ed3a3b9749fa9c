"""A server on loopback that speaks the Tracker's bodies and writes down what Workers tell it."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from aiohttp import web

from meshnet_common.edge.http import json_response, new_application
from meshnet_common.edge.serving import listening
from meshnet_common.openai.errors import ApiError, ErrorBody, model_not_found
from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.messages import (
    Directive,
    DirectiveList,
    DirectiveReport,
    Heartbeat,
    HeartbeatReply,
    PeerAddress,
    PresetAnswer,
    Registered,
    RegisterWorker,
    RenewRoute,
    RouteAnswer,
)
from tests.common.builders import KEY_ID, NOW, signing_key
from tests.worker.waiting import Changes

TOKEN = "worker-token"
_Body = TypeVar("_Body", bound=msgspec.Struct)


class SmallTracker:
    """Knows one preset at most; tests change its mind by setting its attributes."""

    def __init__(self, preset: ModelPreset | None = None) -> None:
        self.url = ""
        self.preset = preset
        self.heartbeat_seconds = 30.0
        self.directive_wait_seconds = 5.0
        self.now = NOW
        self.ticket = "signed"
        self.head_workers: dict[str, list[str]] = {}
        """URLs by model."""
        self.refusal: ApiError | None = None
        self.junk: bytes | None = None
        """Answered to everything in place of the right body."""
        self.registrations: list[RegisterWorker] = []
        self.measure: tuple[PeerAddress, ...] = ()
        self.heartbeats: list[Heartbeat] = []
        self.reports: list[tuple[str, DirectiveReport]] = []
        self.routes: list[tuple[str, str, str | None]] = []
        self.renewals: list[RenewRoute] = []
        self.departures: list[str] = []
        self.probes: list[int] = []
        self.changes = Changes()
        self._token: str | None = None
        self._directives: list[Directive] = []
        self._issued = asyncio.Event()

    def forget_workers(self) -> None:
        """As a Tracker does whose database was lost."""
        self._token = None

    def issue(self, *directives: Directive) -> None:
        self._directives.extend(directives)
        self._issued.set()

    def reports_of(self, directive_id: str) -> list[str]:
        return [report.state.value for known, report in self.reports if known == directive_id]

    def application(self) -> web.Application:
        app = new_application()
        app.router.add_post("/v1/workers", self._register)
        app.router.add_post("/v1/workers/{id}/heartbeat", self._heartbeat)
        app.router.add_get("/v1/workers/{id}/directives", self._list)
        app.router.add_post("/v1/workers/{id}/directives/{directive}", self._report)
        app.router.add_post("/v1/workers/{id}/link-probe", self._probe)
        app.router.add_delete("/v1/workers/{id}", self._leave)
        app.router.add_get("/v1/presets/{name}", self._preset)
        app.router.add_get("/v1/route/{name}", self._route)
        app.router.add_post("/v1/route/renew", self._renew)
        app.router.add_get("/v1/head-workers/{name}", self._head_workers)
        app.router.add_get("/v1/keys", self._keys)
        return app

    async def _register(self, request: web.Request) -> web.Response:
        body = await self._read(request, RegisterWorker)
        if self.refusal is not None:
            raise self.refusal
        self.registrations.append(body)
        self._token = f"{TOKEN}-{len(self.registrations)}"
        return self._answer(
            Registered(
                worker_id=body.worker_id,
                token=self._token,
                heartbeat_seconds=self.heartbeat_seconds,
                lost_after_seconds=12.0,
                directive_wait_seconds=self.directive_wait_seconds,
            )
        )

    async def _heartbeat(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        self.heartbeats.append(await self._read(request, Heartbeat))
        return self._answer(HeartbeatReply(now=self.now, measure=self.measure))

    async def _list(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        after, wait = int(request.query["after"]), float(request.query["wait"])
        found = self._after(after)
        if not found and self.junk is None:
            self._issued.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._issued.wait()
            except TimeoutError:
                pass
            found = self._after(after)
        return self._answer(DirectiveList(directives=found))

    async def _report(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        report = await self._read(request, DirectiveReport)
        self.reports.append((request.match_info["directive"], report))
        return self._answer(None)

    async def _probe(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        self.probes.append(len(await request.read()))
        return self._answer(None)

    async def _leave(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        self.departures.append(request.match_info["id"])
        return self._answer(None)

    async def _preset(self, request: web.Request) -> web.Response:
        if self.preset is None or request.match_info["name"] != self.preset.name:
            raise model_not_found(request.match_info["name"])
        return self._answer(PresetAnswer(preset=self.preset))

    async def _route(self, request: web.Request) -> web.Response:
        if self.refusal is not None:
            raise self.refusal
        authorization = request.headers.get("Authorization")
        self.routes.append((request.match_info["name"], request.query["head"], authorization))
        return self._answer(RouteAnswer(ticket=self.ticket, hops=()))

    async def _renew(self, request: web.Request) -> web.Response:
        if self.refusal is not None:
            raise self.refusal
        self.renewals.append(await self._read(request, RenewRoute))
        return self._answer(RouteAnswer(ticket=self.ticket, hops=()))

    async def _head_workers(self, request: web.Request) -> web.Response:
        if self.refusal is not None:
            raise self.refusal
        urls = self.head_workers.get(request.match_info["name"], [])
        return self._answer({"endpoints": urls})

    async def _keys(self, _request: web.Request) -> web.Response:
        if self.refusal is not None:
            raise self.refusal
        raw = signing_key().public_key().public_bytes_raw()
        x = base64.urlsafe_b64encode(raw).decode().rstrip("=")
        key = {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": KEY_ID, "alg": "EdDSA", "use": "sig"}
        return self._answer({"keys": [key]})

    def _after(self, epoch: int) -> tuple[Directive, ...]:
        return tuple(directive for directive in self._directives if directive.epoch > epoch)

    def _authenticate(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != f"Bearer {self._token}":
            raise ApiError(401, ErrorBody("Who are you?", "invalid_request_error"))

    async def _read(self, request: web.Request, kind: type[_Body]) -> _Body:
        assert request.content_type == "application/json"
        return msgspec.json.decode(await request.read(), type=kind)

    def _answer(self, body: object) -> web.Response:
        # Told when the answer leaves, so that who waits sees all that it says.
        self.changes.tell()
        data = msgspec.json.encode(body) if self.junk is None else self.junk
        return json_response(data)


@asynccontextmanager
async def small_tracker(preset: ModelPreset | None = None) -> AsyncIterator[SmallTracker]:
    tracker = SmallTracker(preset)
    async with listening(tracker.application(), "127.0.0.1", 0) as tracker.url:
        yield tracker
