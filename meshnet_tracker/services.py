"""What the Tracker's handlers and loops share, handed to each of them once by `app.py`."""

from dataclasses import dataclass

from meshnet_common.edge.clock import Clock
from meshnet_tracker.admission import Admissions, Signer
from meshnet_tracker.bells import Bell, DirectiveBells
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.store.store import Store
from meshnet_tracker.under_way import AnswersUnderWay
from meshnet_tracker.view import MeshView


@dataclass(frozen=True, slots=True)
class Services:
    """One Tracker's parts; `rebalance` asks for a planning pass, `view` is for requests."""

    store: Store
    clock: Clock
    settings: TrackerSettings
    signer: Signer
    view: MeshView
    admissions: Admissions
    rebalance: Bell
    directives: DirectiveBells
    answers: AnswersUnderWay

    def mesh_changed(self) -> None:
        """Let requests see a change at once, and the planner think about it."""
        self.view.forget()
        self.rebalance.ring()

    def load_deadline(self) -> float:
        """When a load that makes progress now has to show progress again."""
        return self.clock.now() + self.settings.policy.load_deadline_seconds
