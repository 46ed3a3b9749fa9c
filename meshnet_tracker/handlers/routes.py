"""Signed Routes for Head Workers and gateways, first and fresh ones, and the keys to check them."""

from contextlib import suppress

import msgspec
from aiohttp import web

from meshnet_common.edge.http import json_response, read_json_body
from meshnet_common.ids import WorkerId
from meshnet_common.openai.json_body import decode_body
from meshnet_common.protocol.messages import RenewRoute
from meshnet_tracker.admission import RouteWish
from meshnet_tracker.handlers.catalogue import MODEL
from meshnet_tracker.models import unavailable
from meshnet_tracker.planning.routes import NoRouteError
from meshnet_tracker.services import Services
from meshnet_tracker.store.errors import DatabaseUnavailableError


class RouteHandlers:
    """`/v1/route/{model}` and `/v1/keys`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [
            # allow_head: every Route takes a number in the order of admission.
            web.get(f"/v1/route/{MODEL}", self.route, allow_head=False),
            web.post("/v1/route/renew", self.renew),
            web.get("/v1/keys", self.keys),
        ]

    async def route(self, request: web.Request) -> web.Response:
        admissions, name = self._services.admissions, request.match_info["model"]
        # A Head Worker whose client came straight to it shows that client's key.
        model = await self._services.access.enter(request, name, admissions.find_model)
        try:
            self._services.demand.count(model.key)
            admission = await admissions.admit()
            with self._services.metrics.route_seconds.time():
                answer = await admissions.route(model, admission, _wish(request))
        except NoRouteError as error:
            self._services.rebalance.ring()
            raise unavailable(model, error.missing) from error
        return json_response(msgspec.json.encode(answer))

    async def renew(self, request: web.Request) -> web.Response:
        """Answer a Head Worker whose Session is to be opened again; the old ticket is its proof."""
        services = self._services
        body = decode_body(await read_json_body(request), RenewRoute)
        ticket = await services.signer.verify(body.ticket)
        # A Head Worker that was replaced has no say about others any more.
        await services.admissions.check_renewable(ticket)
        await services.report_fault(ticket, body.faults)
        avoid = frozenset(WorkerId(worker_id) for worker_id in body.avoid)
        faulty = frozenset(WorkerId(fault.worker_id) for fault in body.faults)
        try:
            answer = await services.admissions.renew(ticket, avoid, faulty)
        except NoRouteError as error:
            services.rebalance.ring()
            raise unavailable(await services.admissions.model_of(ticket), error.missing) from error
        return json_response(msgspec.json.encode(answer))

    async def keys(self, request: web.Request) -> web.Response:
        del request
        # Another Tracker may sign with a new key already. Without the database none is added.
        with suppress(DatabaseUnavailableError):
            await self._services.signer.refresh()
        return json_response(msgspec.json.encode(self._services.signer.key_set()))


def _wish(request: web.Request) -> RouteWish:
    excluded = ",".join(request.query.getall("exclude", [])).split(",")
    head = request.query.get("head")
    return RouteWish(
        exclude=frozenset(WorkerId(worker_id) for worker_id in excluded if worker_id),
        head=WorkerId(head) if head else None,
    )
