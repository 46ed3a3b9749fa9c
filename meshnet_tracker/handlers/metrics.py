"""`/metrics` for Prometheus: no secret is in it, and a scrape costs no reading of all Workers.

What only the database knows is asked for in a few short queries. If it does not answer, the figures
of this process are told all the same.
"""

import asyncio

import structlog
from aiohttp import web

from meshnet_common.edge.clock import loop_time
from meshnet_tracker.handlers.admin import check_token
from meshnet_tracker.metrics import CONTENT_TYPE
from meshnet_tracker.overview import coverage_maps
from meshnet_tracker.planning.coverage import CoverageMap
from meshnet_tracker.planning.snapshot import MeshSnapshot, VariantKey
from meshnet_tracker.services import Services
from meshnet_tracker.store.errors import StoreError

DATABASE_SECONDS = 2.0
WORKER_STATES_SECONDS = 30.0
"""How long the count of Workers by state is kept: it is the one query that reads each of them."""

LATE_SECONDS = 5.0
"""What was closed is counted so much later, when no transaction from then can be open any more."""

_logger = structlog.get_logger()


class MetricsHandlers:
    """Fills in the gauges when somebody asks."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._closed_until = services.clock.now()
        self._states_at: float | None = None
        self._snapshot: MeshSnapshot | None = None
        self._coverage: list[tuple[VariantKey, CoverageMap]] = []

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self.show)]

    def follow(self, app: web.Application) -> None:
        """Count every answer of this application, also errors."""
        app.on_response_prepare.append(self._count)

    async def show(self, request: web.Request) -> web.Response:
        if known := self._services.settings.metrics_token_sha256:
            check_token(request, known, "metrics")
        metrics = self._services.metrics
        metrics.plans.set(self._services.turn.term is not None)
        metrics.frozen.set(self._services.frozen.is_set())
        try:
            async with asyncio.timeout(DATABASE_SECONDS):
                await self._ask_database()
            metrics.database_up.set(1)
        except (StoreError, TimeoutError) as error:
            _logger.warning("metrics without the database", reason=str(error))
            metrics.database_up.set(0)
        return web.Response(body=metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def _ask_database(self) -> None:
        metrics, store = self._services.metrics, self._services.store
        now = self._services.clock.now()
        metrics.directives_are_open(await store.operations.tally_directives(), now)
        until = now - LATE_SECONDS
        if until > self._closed_until:
            closed = await store.operations.closed_directives(self._closed_until, until)
            # Only now: if the database did not answer, these are counted the next time.
            self._closed_until = until
            metrics.directives_ended(closed)
        if self._states_at is None or loop_time() - self._states_at > WORKER_STATES_SECONDS:
            metrics.workers_are(await store.operations.worker_states())
            self._states_at = loop_time()
        term = await store.leadership.current()
        metrics.term.set(term.number if term else 0)
        snapshot = await self._services.view.snapshot()
        if snapshot is not self._snapshot:
            self._coverage = await asyncio.to_thread(coverage_maps, snapshot)
            self._snapshot = snapshot
        metrics.coverage_is(self._coverage)

    async def _count(self, request: web.Request, response: web.StreamResponse) -> None:
        resource = request.match_info.route.resource
        endpoint = resource.canonical if resource else "none"
        self._services.metrics.answered(endpoint, response.status)
