"""Puts a Tracker together and runs it: database, key, handlers, loops, and a clean end."""

import asyncio
import gc
import sys

import aiohttp
import structlog
from aiohttp import web

from meshnet_common.edge.clock import Clock, SteadyClock
from meshnet_common.edge.forwarding import upstream_session
from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening, stop_on_signal, write_ready_file
from meshnet_tracker.access import Access
from meshnet_tracker.admission import Admissions
from meshnet_tracker.bells import Bell, DirectiveBells
from meshnet_tracker.counting_proxy import CountingProxy
from meshnet_tracker.database_clock import DatabaseClock
from meshnet_tracker.demand_counter import DemandCounter
from meshnet_tracker.embedding_proxy import EmbeddingProxy
from meshnet_tracker.handlers.admin import AdminHandlers
from meshnet_tracker.handlers.admin_orders import AdminOrderHandlers
from meshnet_tracker.handlers.catalogue import CatalogueHandlers
from meshnet_tracker.handlers.directives import DirectiveHandlers
from meshnet_tracker.handlers.document import DocumentHandlers
from meshnet_tracker.handlers.errors import ERROR_TABLE
from meshnet_tracker.handlers.health import HealthHandlers
from meshnet_tracker.handlers.metrics import MetricsHandlers
from meshnet_tracker.handlers.routes import RouteHandlers
from meshnet_tracker.handlers.workers import WorkerHandlers
from meshnet_tracker.hearing import Hearing
from meshnet_tracker.opening import make_store
from meshnet_tracker.planner_link import PlannerLink
from meshnet_tracker.proxy import AnswerProxy
from meshnet_tracker.reconciler import Reconciler
from meshnet_tracker.services import Services
from meshnet_tracker.settings import ServeOptions, TrackerSettings
from meshnet_tracker.signing import Signer
from meshnet_tracker.store.store import Store
from meshnet_tracker.turn import PlanningTurn
from meshnet_tracker.under_way import AnswersUnderWay
from meshnet_tracker.view import MeshView
from meshnet_tracker.watcher import Watcher
from meshnet_tracker.worker_calls import WorkerCalls

THREAD_TURN_SECONDS = 0.001
"""How long requests may keep the interpreter from the thread that writes to a SQLite file.

It gives the interpreter away for every row; with Python's own 5 ms a batch would take seconds.
"""

GC_THRESHOLDS = (2_000, 500, 10)
"""Python's own (700, 10, 10) look through all ten thousand Workers every few seconds, in which time
nobody is answered. Requests' own cycles are found among the youngest; what outlives them seldom is
part of one, and is looked through every few minutes."""

_logger = structlog.get_logger()


async def serve(options: ServeOptions) -> None:
    """Run a Tracker until SIGTERM or SIGINT.

    Raises SchemaError, DatabaseUnavailableError, PortInUseError, ListenError, ReadyFileError.
    """
    sys.setswitchinterval(THREAD_TURN_SECONDS)
    gc.set_threshold(*GC_THRESHOLDS)
    async with (
        make_store(options.database) as store,
        upstream_session(idle_seconds=None) as upstream,
        PlannerLink(options.database) as planner,
        asyncio.TaskGroup() as tasks,
    ):
        clock = DatabaseClock(store, SteadyClock())
        await clock.set()
        services = await make_services(store, options.settings, clock)
        app = make_app(services, upstream)
        with stop_on_signal() as stop:
            async with listening(app, options.host, options.port) as url:
                loops = [
                    tasks.create_task(clock.run()),
                    tasks.create_task(services.turn.run(services.rebalance)),
                    tasks.create_task(Watcher(services).run()),
                    tasks.create_task(Hearing(services).run()),
                    tasks.create_task(services.demand.run()),
                    tasks.create_task(services.access.tokens.run()),
                    tasks.create_task(services.view.run()),
                    tasks.create_task(Reconciler(services, planner.plan).run()),
                ]
                if options.ready_file is not None:
                    write_ready_file(options.ready_file, url)
                _logger.info("tracker listening", url=url)
                await stop.wait()
                _logger.info("tracker stopping")
                services.directives.close()
                for loop in loops:
                    loop.cancel()
                await asyncio.wait(loops)
                await services.turn.hand_over()


async def make_services(store: Store, settings: TrackerSettings, clock: Clock) -> Services:
    """Make the parts that handlers and loops share."""
    signer = await Signer.of(store, clock, settings.renewal_seconds)
    view = MeshView(store)
    return Services(
        store=store,
        clock=clock,
        settings=settings,
        access=Access(store, clock, requires_key=settings.requires_api_key),
        signer=signer,
        view=view,
        admissions=Admissions(store, view, signer, clock, settings),
        rebalance=Bell(),
        directives=DirectiveBells(),
        answers=AnswersUnderWay(),
        turn=PlanningTurn(store, clock),
        calls=WorkerCalls(store, clock, settings.policy.load_deadline_seconds),
        demand=DemandCounter(store, clock),
    )


def make_app(services: Services, upstream: aiohttp.ClientSession) -> web.Application:
    """Make the application with all endpoints."""
    app = new_application(ERROR_TABLE)
    metrics = MetricsHandlers(services)
    metrics.follow(app)
    for handlers in (
        WorkerHandlers(services),
        DirectiveHandlers(services),
        CatalogueHandlers(services),
        RouteHandlers(services),
        HealthHandlers(services),
        DocumentHandlers(),
        AdminHandlers(services),
        AdminOrderHandlers(services),
        metrics,
        AnswerProxy(services, upstream),
        CountingProxy(services, upstream),
        EmbeddingProxy(services, upstream),
    ):
        app.add_routes(handlers.routes())
    return app
