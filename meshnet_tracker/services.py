"""What the Tracker's handlers and loops share, handed to each of them once by `app.py`."""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import structlog

from meshnet_common.edge.clock import Clock
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import HopFault
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_tracker.access import Access
from meshnet_tracker.admission import Admissions
from meshnet_tracker.bells import Bell, Chime, DirectiveBells
from meshnet_tracker.demand_counter import DemandCounter
from meshnet_tracker.held import HeldRequests
from meshnet_tracker.loss_rules import WITNESSES, is_cut_off
from meshnet_tracker.metrics import Metrics
from meshnet_tracker.probing import WorkerProbes
from meshnet_tracker.quarantine import Quarantine
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.signing import Signer
from meshnet_tracker.store.store import Store
from meshnet_tracker.turn import PlanningTurn
from meshnet_tracker.under_way import AnswersUnderWay
from meshnet_tracker.view import MeshView
from meshnet_tracker.worker_calls import WorkerCalls

DOUBTFUL_CODES = frozenset({"peer_lost", "peer_stalled"})
"""Faults that leave open whether the Worker lives; the others it has told of itself."""

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Services:
    """One Tracker's parts; `rebalance` asks for a planning pass, `view` is for requests.

    `changes` wakes the requests that wait for Layers. While `frozen` is set nothing is planned: so
    many Workers fell silent at once that rather the network did.
    """

    store: Store
    clock: Clock
    settings: TrackerSettings
    access: Access
    signer: Signer
    view: MeshView
    admissions: Admissions
    rebalance: Bell
    directives: DirectiveBells
    answers: AnswersUnderWay
    turn: PlanningTurn
    calls: WorkerCalls
    demand: DemandCounter
    frozen: asyncio.Event = field(default_factory=asyncio.Event)
    probes: WorkerProbes = field(default_factory=WorkerProbes)
    changes: Chime = field(default_factory=Chime)
    held: HeldRequests = field(default_factory=HeldRequests)
    quarantine: Quarantine = field(default_factory=Quarantine)
    metrics: Metrics = field(default_factory=Metrics)

    def mesh_changed(self) -> None:
        """Let requests see a change at once, and the planner think about it."""
        self.admissions.names.forget()
        self.workers_changed()

    def workers_changed(self) -> None:
        """Tell of a change that leaves names as they are."""
        self.view.forget()
        self.rebalance.ring()
        self.changes.strike()

    async def report_fault(self, ticket: RouteTicket, faults: Iterable[HopFault]) -> None:
        """Probe Workers that failed a Session, once each, and mark who does not answer as lost.

        The ticket is the proof: of Workers that are not on its Route nothing is believed.
        """
        on_route = {hop.worker_id for hop in ticket.hops}
        doubted = {
            WorkerId(fault.worker_id)
            for fault in faults
            if fault.code in DOUBTFUL_CODES and fault.worker_id in on_route
        }
        if not doubted:
            return
        silent = await self.probes.silent(await self.store.losses.places(doubted))
        if silent and await self._is_cut_off(doubted):
            _logger.warning("no worker answers this tracker; their heartbeats decide who is lost")
            return
        for place in silent:
            if await self.store.losses.mark_unreachable(place, self.clock.now()):
                _logger.warning("worker lost", worker=place.worker_id, reason="no answer")
                # It may well send heartbeats, but nobody who dials it comes through.
                self.probes.doubt(place, self.clock.now())
                self.worker_lost(place.worker_id)
                self.mesh_changed()

    async def _is_cut_off(self, doubted: Collection[WorkerId]) -> bool:
        others = await self.store.losses.witnesses(doubted, WITNESSES)
        # Mostly the first one answers, and then nobody else is asked.
        for asked in (others[:1], others[1:]):
            if len(await self.probes.silent(asked)) < len(asked):
                return False
        return is_cut_off(len(others), len(others))

    def worker_lost(self, worker_id: WorkerId) -> None:
        """End what waits for a Worker that was marked as lost."""
        self.answers.cut(worker_id)
