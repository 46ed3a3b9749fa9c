"""Planning passes: read what has changed in the Mesh, let the pure planner decide.

Reading ten thousand Workers anew for each pass would cost more than planning. What is kept from one
pass to the next is a copy of the database and nothing else, and is read anew now and then.
"""

import time
from collections.abc import Callable, Sequence

from meshnet_tracker.mesh_copy import MeshCopy
from meshnet_tracker.planner_messages import Planned
from meshnet_tracker.planning.rebalance import plan_rebalance
from meshnet_tracker.planning.snapshot import MeshSnapshot, PlannerPolicy, RebalanceDirective
from meshnet_tracker.store.store import Store

FRESH_SECONDS = 300.0
"""After that long the whole Mesh is read anew."""

Planner = Callable[[MeshSnapshot, PlannerPolicy, float], Sequence[RebalanceDirective]]


class PlanningPasses:
    """Plans again and again on one database."""

    def __init__(self, store: Store, plan: Planner = plan_rebalance) -> None:
        self._store = store
        self._plan = plan
        self._copy = MeshCopy()
        self._copied_at = 0.0

    async def plan(self, policy: PlannerPolicy, now: float) -> Planned:
        """Plan on the Mesh as it is now; raises DatabaseUnavailableError.

        It occupies its event loop for as long as it plans.
        """
        if not 0 <= now - self._copied_at < FRESH_SECONDS:
            self._copy, self._copied_at = MeshCopy(), now
        changes = await self._store.mesh.changes(self._copy.numbers)
        self._copy.apply(changes)
        snapshot = self._copy.snapshot(await self._store.mesh.demand())
        began = time.process_time()
        directives = tuple(self._plan(snapshot, policy, now))
        return Planned(directives, changes.issued_plans, time.process_time() - began)
