"""The real router, told what a Tracker would know: the Heartbeats, and what it routed since."""

from collections.abc import Iterable

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteHop
from meshnet_tracker.planning.routes import NoRouteError, RouteCosts, choose_route
from meshnet_tracker.planning.snapshot import VariantKey, WorkerView

HEARTBEAT_SECONDS = 4.0


class Router:
    """Chooses Routes from what the last Heartbeats said."""

    def __init__(self, key: VariantKey, layers: int, workers: Iterable[WorkerView]) -> None:
        self._key = key
        self._layers = layers
        self._views = {view.worker_id: view for view in workers}

    def hear(self, views: Iterable[WorkerView]) -> None:
        """Take in the Heartbeats of these Workers."""
        self._views.update((view.worker_id, view) for view in views)

    def route(
        self, salt: str, full: frozenset[WorkerId], now: float
    ) -> tuple[RouteHop, ...] | None:
        """Choose a Route around those that are full; None if there is none."""
        try:
            return choose_route(
                self._views.values(),
                self._key,
                self._layers,
                exclude=full,
                costs=RouteCosts(tie_salt=salt),
            )
        except NoRouteError:
            return None
