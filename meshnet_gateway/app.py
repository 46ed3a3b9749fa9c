"""Wires the Gateway: one client session, what it serves, and the tasks that look after it."""

import asyncio
import signal
from collections.abc import Callable

import structlog
from aiohttp import web

from meshnet_common.edge.beside import beside
from meshnet_common.edge.clock import SteadyClock
from meshnet_common.edge.forwarding import upstream_session
from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import serve_until_signal
from meshnet_gateway.config.faults import SettingsError
from meshnet_gateway.config.reloading import changes_between
from meshnet_gateway.config.settings import Settings
from meshnet_gateway.handlers import Handlers
from meshnet_gateway.services import Services
from meshnet_gateway.status import StatusHandlers

_logger = structlog.get_logger()

ReadAnew = Callable[[], Settings]


async def serve(read: ReadAnew, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Run a Gateway until a signal ends it; SIGHUP has its settings read anew.

    Raises SettingsError if they cannot be used from the first.
    """
    settings = read()

    def ready(url: str) -> None:
        _logger.info("gateway listening", url=url, meshes=",".join(settings.meshes))
        on_ready(url)

    async with upstream_session() as session:
        services = Services.of(session, settings, SteadyClock())
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, reload, services, read)
        try:
            async with beside(services.watch.run()):
                await serve_until_signal(gateway_application(services), host, port, ready)
        finally:
            loop.remove_signal_handler(signal.SIGHUP)


def reload(services: Services, read: ReadAnew) -> None:
    """Read the settings anew; faulty ones change nothing."""
    try:
        settings = read()
    except SettingsError as error:
        _logger.warning("settings not changed", faults=error.faults)
        return
    changes = changes_between(services.settings, settings)
    services.apply(settings)
    _logger.info("settings read anew", **changes.facts())


def gateway_application(services: Services) -> web.Application:
    """Make the application over these services."""
    app = new_application()
    app.router.add_routes(Handlers(services).routes())
    app.router.add_routes(StatusHandlers(services).routes())
    return app
