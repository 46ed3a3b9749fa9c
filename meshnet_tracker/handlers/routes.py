"""Signed Routes for Head Workers and gateways, first and fresh ones, and the keys to check them."""

import msgspec
from aiohttp import web

from meshnet_common.edge.http import json_response, read_json_body
from meshnet_common.ids import WorkerId
from meshnet_common.openai.json_body import decode_body
from meshnet_common.protocol.messages import RenewRoute
from meshnet_tracker.admission import RouteWish
from meshnet_tracker.handlers.catalogue import MODEL
from meshnet_tracker.models import ModelUnavailableError, unavailable
from meshnet_tracker.planning.routes import NoRouteError
from meshnet_tracker.services import Services


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
        admissions = self._services.admissions
        model = await admissions.find_model(request.match_info["model"])
        try:
            answer = await admissions.route(model, await admissions.admit(), _wish(request))
        except NoRouteError as error:
            self._services.rebalance.ring()
            raise unavailable(model, error.missing) from error
        return json_response(msgspec.json.encode(answer))

    async def renew(self, request: web.Request) -> web.Response:
        """Answer a Head Worker whose Session is to be opened again; the old ticket is its proof."""
        body = decode_body(await read_json_body(request), RenewRoute)
        ticket = self._services.signer.verify(body.ticket)
        avoid = frozenset(WorkerId(worker_id) for worker_id in body.avoid)
        try:
            answer = await self._services.admissions.renew(ticket, avoid)
        except NoRouteError as error:
            self._services.rebalance.ring()
            raise ModelUnavailableError(error.detail) from error
        return json_response(msgspec.json.encode(answer))

    async def keys(self, request: web.Request) -> web.Response:
        del request
        return json_response(msgspec.json.encode(self._services.signer.key_set()))


def _wish(request: web.Request) -> RouteWish:
    excluded = ",".join(request.query.getall("exclude", [])).split(",")
    head = request.query.get("head")
    return RouteWish(
        exclude=frozenset(WorkerId(worker_id) for worker_id in excluded if worker_id),
        head=WorkerId(head) if head else None,
    )
