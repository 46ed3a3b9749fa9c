"""Wires the Gateway: one client session, the meshes, the Head Workers and the endpoints."""

from collections.abc import Callable

import structlog
from aiohttp import web

from meshnet_common.edge.clock import Clock, SystemClock
from meshnet_common.edge.forwarding import upstream_session
from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import serve_until_signal
from meshnet_gateway.handlers import Handlers
from meshnet_gateway.meshes import Meshes
from meshnet_gateway.upstreams import HeadWorkerPool

_logger = structlog.get_logger()


async def serve(
    meshes: tuple[str, ...], host: str, port: int, on_ready: Callable[[str], None]
) -> None:
    """Run a Gateway in front of these Trackers' base URLs until a signal ends it."""

    def ready(url: str) -> None:
        _logger.info("gateway listening", url=url, meshes=",".join(meshes))
        on_ready(url)

    async with upstream_session() as session:
        clock: Clock = SystemClock()
        handlers = Handlers(Meshes(session, meshes, clock), HeadWorkerPool(session, clock))
        await serve_until_signal(gateway_application(handlers), host, port, ready)


def gateway_application(handlers: Handlers) -> web.Application:
    """Make the application of these handlers."""
    app = new_application()
    app.router.add_routes(handlers.routes())
    return app
