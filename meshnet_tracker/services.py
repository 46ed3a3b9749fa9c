"""What the Tracker's handlers and loops share, handed to each of them once by `app.py`."""

from dataclasses import dataclass

from meshnet_common.edge.clock import Clock
from meshnet_tracker.admission import Admissions, Signer
from meshnet_tracker.bells import Bell, DirectiveBells
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.store.store import Store


@dataclass(frozen=True, slots=True)
class Services:
    """One Tracker's parts; `rebalance` asks for a planning pass."""

    store: Store
    clock: Clock
    settings: TrackerSettings
    signer: Signer
    admissions: Admissions
    rebalance: Bell
    directives: DirectiveBells

    def load_deadline(self) -> float:
        """When a load that makes progress now has to show progress again."""
        return self.clock.now() + self.settings.policy.load_deadline_seconds
