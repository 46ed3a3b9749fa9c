"""What an Operator tells a running Tracker: pins, drains, aliases, and to plan now.

A Tracker on the same database hears of it within a second, this one at once.
"""

from collections.abc import Awaitable
from typing import TypeVar

import msgspec
import structlog
from aiohttp import web

from meshnet_common.edge.http import json_response, read_json_body
from meshnet_common.ids import WorkerId
from meshnet_common.openai.errors import invalid_request, not_found
from meshnet_common.openai.json_body import decode_body
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.handlers.admin import ADMIN, check_admin
from meshnet_tracker.models import find_model, unavailable
from meshnet_tracker.overview import coverage_maps, describe_alias, describe_pins
from meshnet_tracker.planning.snapshot import Pin
from meshnet_tracker.records import AliasRecord
from meshnet_tracker.services import Services
from meshnet_tracker.store.errors import AliasError, PinError
from meshnet_tracker.worker_rules import PLAIN_ID_RULE, is_plain_id

_Order = TypeVar("_Order", bound=msgspec.Struct)

_logger = structlog.get_logger()


class PinOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /admin/v1/pins`; `model` is a public name, the end is excluded."""

    worker_id: str
    model: str
    start_layer: int
    end_layer: int


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Body that names a Worker."""

    worker_id: str


class AliasOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /admin/v1/aliases`; `force` also where Layers of the target are missing."""

    name: str
    target: str
    force: bool = False


class NameOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Body that names an Alias."""

    name: str


class AdminOrderHandlers:
    """Changing `/admin/v1/...`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(f"{ADMIN}/pins", self.pin),
            web.delete(f"{ADMIN}/pins/{{worker_id}}", self.unpin),
            web.post(f"{ADMIN}/drain", self.drain),
            web.delete(f"{ADMIN}/drain/{{worker_id}}", self.undrain),
            web.post(f"{ADMIN}/aliases", self.set_alias),
            web.post(f"{ADMIN}/aliases/rollback", self.roll_back_alias),
            web.post(f"{ADMIN}/plan", self.plan),
        ]

    async def pin(self, request: web.Request) -> web.Response:
        order = await self._order(request, PinOrder)
        model = await self._services.admissions.find_model(order.model)
        try:
            shard_range = ShardRange(order.start_layer, order.end_layer)
        except ValueError as error:
            message = "`end_layer` must be above `start_layer`, and that not negative."
            raise invalid_request(message, "end_layer") from error
        pin = Pin(_worker_id(order), model.key, shard_range)
        try:
            await self._services.store.pins.set(pin, self._services.clock.now())
        except PinError as error:
            raise invalid_request(error.detail, "end_layer") from error
        self._changed("worker pinned", worker=pin.worker_id, model=model.name, layers=shard_range)
        return json_response(msgspec.json.encode(describe_pins([pin])[0]), status=201)

    async def unpin(self, request: web.Request) -> web.Response:
        check_admin(self._services, request)
        worker_id = WorkerId(request.match_info["worker_id"])
        if not await self._services.store.pins.remove(worker_id):
            raise not_found(f"The worker {worker_id} is not pinned.")
        self._changed("worker no longer pinned", worker=worker_id)
        return web.Response(status=204)

    async def drain(self, request: web.Request) -> web.Response:
        """Have a Worker's Layers loaded elsewhere, and then have it drop them."""
        order = await self._order(request, WorkerOrder)
        worker_id = _worker_id(order)
        if not await self._services.store.losses.places([worker_id]):
            raise not_found(f"There is no live worker {worker_id}.")
        await self._services.store.drains.set(worker_id, self._services.clock.now())
        self._changed("worker to be drained", worker=worker_id)
        return json_response(msgspec.json.encode(order), status=201)

    async def undrain(self, request: web.Request) -> web.Response:
        check_admin(self._services, request)
        worker_id = WorkerId(request.match_info["worker_id"])
        if not await self._services.store.drains.remove(worker_id):
            raise not_found(f"The worker {worker_id} is not to be drained.")
        self._changed("worker no longer to be drained", worker=worker_id)
        return web.Response(status=204)

    async def set_alias(self, request: web.Request) -> web.Response:
        """Cut over; refused while Layers of the target are missing, unless it is forced."""
        order = await self._order(request, AliasOrder)
        if not order.force:
            await self._check_servable(order.target)
        return await self._alias_answer(
            self._services.store.aliases.set(order.name, order.target, self._services.clock.now())
        )

    async def roll_back_alias(self, request: web.Request) -> web.Response:
        order = await self._order(request, NameOrder)
        return await self._alias_answer(
            self._services.store.aliases.roll_back(order.name, self._services.clock.now())
        )

    async def plan(self, request: web.Request) -> web.Response:
        """Ask for a planning pass now."""
        check_admin(self._services, request)
        self._services.rebalance.ring()
        # Another Tracker may be the one that plans.
        await self._services.store.operations.tell()
        return json_response(b'{"status":"asked for"}', status=202)

    async def _order(self, request: web.Request, kind: type[_Order]) -> _Order:
        check_admin(self._services, request)
        return decode_body(await read_json_body(request), kind)

    async def _check_servable(self, target: str) -> None:
        snapshot = await self._services.view.snapshot()
        model = find_model(snapshot.presets, target)
        coverage = dict(coverage_maps(snapshot))[model.key]
        if not coverage.servable:
            raise unavailable(model, coverage.gaps())

    async def _alias_answer(self, change: Awaitable[AliasRecord]) -> web.Response:
        try:
            alias = await change
        except AliasError as error:
            raise invalid_request(error.detail, "target") from error
        self._changed("alias set", name=alias.name, target=alias.target, prior=alias.prior)
        return json_response(msgspec.json.encode(describe_alias(alias)))

    def _changed(self, event: str, **facts: object) -> None:
        _logger.info(event, **facts)
        self._services.mesh_changed()


def _worker_id(order: PinOrder | WorkerOrder) -> WorkerId:
    if not is_plain_id(order.worker_id):
        raise invalid_request(f"No worker can be called so: {PLAIN_ID_RULE}.", "worker_id")
    return WorkerId(order.worker_id)
