"""The real router, told what a Tracker would know: the Heartbeats, and what it routed since."""

from collections.abc import Iterable

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteHop
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.routes import NoRouteError, RouteCosts, choose_route
from meshnet_tracker.planning.snapshot import VariantKey, WorkerView

HEARTBEAT_SECONDS = 4.0


class Router:
    """Chooses Routes from what the last Heartbeats said."""

    def __init__(self, key: VariantKey, layers: int, workers: Iterable[WorkerView]) -> None:
        self._key = key
        self._layers = layers
        self._table = RouteTable.of(workers)

    def hear(self, views: Iterable[WorkerView]) -> None:
        """Take in the Heartbeats of these Workers."""
        for view in views:
            self._table.apply(self._table.worker(view.worker_id), view)

    def route(
        self, salt: str, kv_bytes: int, full: frozenset[WorkerId], now: float
    ) -> tuple[RouteHop, ...] | None:
        """Choose a Route around those that are full; None if there is none."""
        self._table.settle(now)
        costs = RouteCosts(tie_salt=salt, kv_bytes_per_layer=kv_bytes)
        try:
            hops = choose_route(self._table, self._key, self._layers, exclude=full, costs=costs)
        except NoRouteError:
            return None
        self._table.note(hops, now, HEARTBEAT_SECONDS + 1)
        return hops
