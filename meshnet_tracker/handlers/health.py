"""Liveness and readiness; both say nothing that a stranger should not know."""

import structlog
from aiohttp import web

from meshnet_common.edge.http import json_response
from meshnet_tracker.services import Services
from meshnet_tracker.store.errors import StoreError

_logger = structlog.get_logger()


class HealthHandlers:
    """`/healthz` and `/readyz`, with and without the last letter."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz", self.healthz),
            web.get("/health", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/ready", self.readyz),
        ]

    async def healthz(self, request: web.Request) -> web.Response:
        del request
        return json_response(b'{"status":"ok"}')

    async def readyz(self, request: web.Request) -> web.Response:
        """Be ready while the database answers, has this release's schema and can be written."""
        del request
        if not self._services.turn.can_write:
            return json_response(b'{"status":"database cannot be written"}', status=503)
        try:
            await self._services.store.check_schema()
        except StoreError as error:
            _logger.warning("not ready", reason=str(error))
            return json_response(b'{"status":"database unavailable"}', status=503)
        return json_response(b'{"status":"ready"}')
