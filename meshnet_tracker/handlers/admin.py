"""What an Operator asks a running Tracker, with a token of its own; without one it is not there.

Reading is here, changing in `admin_orders.py`. The token is known by its SHA-256 only, and compared
in constant time.
"""

import asyncio
import hmac

import msgspec
from aiohttp import web

from meshnet_common.edge.http import bearer_token, json_response
from meshnet_common.openai.errors import INVALID_REQUEST, ApiError, ErrorBody, not_found
from meshnet_tracker.answers import summarize_workers
from meshnet_tracker.overview import (
    describe_aliases,
    describe_coverage,
    describe_directives,
    describe_pins,
)
from meshnet_tracker.planning.explain import explain
from meshnet_tracker.services import Services
from meshnet_tracker.tokens import token_sha256

ADMIN = "/admin/v1"
LATELY_SECONDS = 3600.0
MOST_CLOSED = 1000


def check_admin(services: Services, request: web.Request) -> None:
    """Raise ApiError unless the request carries the admin token.

    404 where none is set, so that nobody learns more than that; 401 without one or with a wrong
    one.
    """
    known = services.settings.admin_token_sha256
    if not known:
        raise not_found(f"There is nothing at {request.path}.")
    check_token(request, known, "admin")


def check_token(request: web.Request, known_sha256: str, what: str) -> None:
    """Raise ApiError 401 unless the request carries this token."""
    if not hmac.compare_digest(known_sha256, token_sha256(bearer_token(request))):
        message = f"Send the {what} token as `Authorization: Bearer ...`."
        body = ErrorBody(message, INVALID_REQUEST, None, f"invalid_{what}_token")
        raise ApiError(401, body, {"WWW-Authenticate": "Bearer"})


class AdminHandlers:
    """Reading `/admin/v1/...`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(f"{ADMIN}/workers", self.workers),
            web.get(f"{ADMIN}/coverage", self.coverage),
            web.get(f"{ADMIN}/directives", self.directives),
            web.get(f"{ADMIN}/pins", self.pins),
            web.get(f"{ADMIN}/aliases", self.aliases),
            web.get(f"{ADMIN}/drain", self.drained),
            web.get(f"{ADMIN}/plan", self.plan),
        ]

    async def workers(self, request: web.Request) -> web.Response:
        check_admin(self._services, request)
        records = await self._services.store.workers()
        return json_response(
            msgspec.json.encode(summarize_workers(records, self._services.clock.now()))
        )

    async def coverage(self, request: web.Request) -> web.Response:
        check_admin(self._services, request)
        snapshot = await self._services.view.snapshot()
        names = await self._services.admissions.names.book()
        return _listing("variants", describe_coverage(snapshot, names))

    async def directives(self, request: web.Request) -> web.Response:
        """List what is not finished, and what was closed within the last hour."""
        check_admin(self._services, request)
        now, operations = self._services.clock.now(), self._services.store.operations
        closed = await operations.closed_directives(now - LATELY_SECONDS, now, MOST_CLOSED)
        opened = await operations.open_directives()
        return json_response(
            msgspec.json.encode(
                {
                    "open": describe_directives(opened, now),
                    "closed": describe_directives(closed, now),
                }
            )
        )

    async def pins(self, request: web.Request) -> web.Response:
        check_admin(self._services, request)
        return _listing("pins", describe_pins(await self._services.store.pins.all()))

    async def aliases(self, request: web.Request) -> web.Response:
        check_admin(self._services, request)
        return _listing("aliases", describe_aliases(await self._services.store.aliases.all()))

    async def drained(self, request: web.Request) -> web.Response:
        check_admin(self._services, request)
        return _listing("workers", tuple(sorted(await self._services.store.drains.all())))

    async def plan(self, request: web.Request) -> web.Response:
        """Explain what a planning pass would order now; nothing is ordered."""
        check_admin(self._services, request)
        snapshot = (await self._services.store.load_snapshot()).snapshot
        policy, now = self._services.settings.policy, self._services.clock.now()
        explained = await asyncio.to_thread(explain, snapshot, policy, now)
        return json_response(msgspec.json.encode(explained))


def _listing(name: str, entries: object) -> web.Response:
    return json_response(msgspec.json.encode({name: entries}))
