"""What the Tracker's handlers and loops share, handed to each of them once by `app.py`."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from meshnet_common.edge.clock import Clock
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import HopFault
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_tracker.admission import Admissions
from meshnet_tracker.bells import Bell, Chime, DirectiveBells
from meshnet_tracker.probing import WorkerProbes
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.signing import Signer
from meshnet_tracker.store.store import Store
from meshnet_tracker.under_way import AnswersUnderWay
from meshnet_tracker.view import MeshView

DOUBTFUL_CODES = frozenset({"peer_lost", "peer_stalled"})
"""Faults that leave open whether the Worker lives; the others it has told of itself."""

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Services:
    """One Tracker's parts; `rebalance` asks for a planning pass, `view` is for requests.

    `changes` wakes the requests that wait for Layers.
    """

    store: Store
    clock: Clock
    settings: TrackerSettings
    signer: Signer
    view: MeshView
    admissions: Admissions
    rebalance: Bell
    directives: DirectiveBells
    answers: AnswersUnderWay
    probes: WorkerProbes = field(default_factory=WorkerProbes)
    changes: Chime = field(default_factory=Chime)

    def mesh_changed(self) -> None:
        """Let requests see a change at once, and the planner think about it."""
        self.view.forget()
        self.admissions.names.forget()
        self.rebalance.ring()
        self.changes.strike()

    def load_deadline(self) -> float:
        """When a load that makes progress now has to show progress again."""
        return self.clock.now() + self.settings.policy.load_deadline_seconds

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
        places = await self.store.worker_places(doubted)
        for place in await self.probes.silent(places):
            if await self.store.mark_unreachable(place, self.clock.now()):
                _logger.warning("worker lost", worker=place.worker_id, reason="no answer")
                # It may well send heartbeats, but nobody who dials it comes through.
                self.probes.doubt(place, self.clock.now())
                self.worker_lost(place.worker_id)
                self.mesh_changed()

    def worker_lost(self, worker_id: WorkerId) -> None:
        """End what waits for a Worker that was marked as lost."""
        self.answers.cut(worker_id)
